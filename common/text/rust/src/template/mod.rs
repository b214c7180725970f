//! Chat templates rendered as transformers renders them.
//!
//! minijinja parses and runs them; rewrite.rs and the other modules here supply what its dialect lacks of Jinja2 and of
//! Python. The environment is transformers': trim_blocks, lstrip_blocks, no escaping, loop controls, the generation tag,
//! tojson, raise_exception, strftime_now, and a sandbox in which nothing can be changed in place.

mod budget;
mod collections;
mod expressions;
mod filters;
mod format;
mod json;
mod methods;
mod operators;
mod prepare;
mod python;
mod rewrite;
mod strftime;
mod tuple;

use std::thread;

use minijinja::{Environment, Error, ErrorKind, UndefinedBehavior, Value};

pub use budget::Limits;

use crate::fault::{exhausted, invalid, Fault, Result};

const NAME: &str = "chat template";
const MAX_SOURCE: usize = 1 << 20;
/// Macros and recursive loops, calling each other.
const MAX_CALLS: usize = 200;
/// Values and syntax trees are freed by recursion; the limits above keep that inside this stack.
const STACK: usize = 64 << 20;

pub struct Template {
    environment: Environment<'static>,
}

impl Template {
    pub fn new(source: &str) -> Result<Self> {
        if source.len() > MAX_SOURCE {
            return Err(invalid(format!(
                "the chat template has {} bytes; at most {MAX_SOURCE} are read",
                source.len()
            )));
        }
        let source = prepare::prepare(source);
        on_big_stack(|| {
            let mut environment = environment();
            let rewritten = rewrite::rewrite(&source).map_err(|e| parse_fault(&e))?;
            environment.add_template_owned(NAME, rewritten).map_err(|e| parse_fault(&e))?;
            Ok(Self { environment })
        })
    }

    /// `variables`: a JSON object.
    pub fn render(&self, variables: &str, now_unix_seconds: i64, limits: Limits) -> Result<String> {
        let variables: serde_json::Value =
            serde_json::from_str(variables).map_err(|e| invalid(format!("the chat's messages: {e}")))?;
        on_big_stack(|| {
            let mut environment = self.environment.clone();
            environment.set_fuel(Some(limits.steps));
            budget::begin(limits, now_unix_seconds);
            let template = environment.get_template(NAME).map_err(|e| parse_fault(&e))?;
            template.render(Value::from_serialize(&variables)).map_err(|e| render_fault(&e))
        })
    }
}

fn on_big_stack<T: Send>(work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    thread::scope(|scope| {
        let builder = thread::Builder::new().name("chat-template".into()).stack_size(STACK);
        let handle = builder
            .spawn_scoped(scope, work)
            .map_err(|e| exhausted(format!("no thread for the chat template: {e}")))?;
        handle.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

fn environment() -> Environment<'static> {
    let mut env = Environment::new();
    env.set_undefined_behavior(UndefinedBehavior::Lenient);
    env.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
    env.set_recursion_limit(MAX_CALLS);
    env.set_unknown_method_callback(methods::call);
    env.set_formatter(|out, _, value| {
        let text = python::text(value)?;
        budget::charge(text.len())?;
        out.write_str(&text).map_err(Error::from)
    });
    operators::install(&mut env);
    filters::install(&mut env);
    collections::install(&mut env);
    env.add_function("raise_exception", filters::raise_exception);
    env.add_function("strftime_now", filters::strftime_now);
    env.add_function("__generation", filters::generation);
    env
}

fn place(error: &Error) -> String {
    error.line().map_or(String::new(), |line| format!(" (line {line} of the template)"))
}

fn parse_fault(error: &Error) -> Fault {
    let detail = error.detail().unwrap_or("it cannot be read");
    invalid(format!("the chat template cannot be parsed: {detail}{}", place(error)))
}

fn render_fault(error: &Error) -> Fault {
    match budget::ending() {
        budget::Ending::Exhausted => {
            exhausted("the chat template makes more text or lists than its limit allows")
        }
        budget::Ending::Raised(message) => {
            invalid(format!("the chat template refuses these messages: {message}"))
        }
        budget::Ending::Other if error.kind() == ErrorKind::OutOfFuel => {
            exhausted("the chat template takes more steps than its limit allows")
        }
        budget::Ending::Other => {
            let detail = error.detail().map_or(error.kind().to_string(), str::to_owned);
            invalid(format!("the chat template cannot handle these messages: {detail}{}", place(error)))
        }
    }
}
