//! What one rendering may use. A template is a file from outside: it may loop, double a string, or nest lists for ever.

use std::cell::RefCell;

use minijinja::value::ValueKind;
use minijinja::{Error, ErrorKind, Value};

#[derive(Clone, Copy)]
pub struct Limits {
    /// Instructions of the engine.
    pub steps: u64,
    /// Bytes of the rendering and of any single string.
    pub output_bytes: usize,
}

/// Bytes of all strings made on the way, as a multiple of `output_bytes`.
const MADE: usize = 32;
/// Lists and maps made; bounds how deep values nest, and so the stack that freeing them takes.
const CONTAINERS: usize = 100_000;

#[derive(Default)]
struct Budget {
    single: usize,
    made: usize,
    containers: usize,
    exhausted: bool,
    raised: Option<String>,
    now: i64,
}

thread_local! {
    static BUDGET: RefCell<Budget> = RefCell::default();
}

/// How a rendering on this thread ended, if by its own doing.
pub enum Ending {
    Exhausted,
    Raised(String),
    Other,
}

pub fn begin(limits: Limits, now: i64) {
    BUDGET.with_borrow_mut(|b| {
        *b = Budget {
            single: limits.output_bytes,
            made: limits.output_bytes.saturating_mul(MADE),
            containers: CONTAINERS,
            now,
            ..Budget::default()
        }
    });
}

pub fn ending() -> Ending {
    BUDGET.with_borrow_mut(|b| match b.raised.take() {
        _ if b.exhausted => Ending::Exhausted,
        Some(message) => Ending::Raised(message),
        None => Ending::Other,
    })
}

pub fn now() -> i64 {
    BUDGET.with_borrow(|b| b.now)
}

/// The error of raise_exception.
pub fn raised(message: String) -> Error {
    BUDGET.with_borrow_mut(|b| b.raised = Some(message.clone()));
    Error::new(ErrorKind::InvalidOperation, message)
}

/// Takes `bytes` of a string about to be made.
pub fn charge(bytes: usize) -> Result<(), Error> {
    BUDGET.with_borrow_mut(|b| {
        if bytes > b.single || bytes > b.made {
            b.exhausted = true;
            return Err(Error::new(ErrorKind::InvalidOperation, "the template makes too much text"));
        }
        b.made -= bytes;
        Ok(())
    })
}

/// Whether a string that is being made may have `bytes` by now.
pub fn fits(bytes: usize) -> Result<(), Error> {
    BUDGET.with_borrow_mut(|b| {
        b.exhausted |= bytes > b.single;
        if b.exhausted {
            Err(Error::new(ErrorKind::InvalidOperation, "the template makes too much text"))
        } else {
            Ok(())
        }
    })
}

pub fn text(text: String) -> Result<Value, Error> {
    charge(text.len())?;
    Ok(Value::from(text))
}

/// Takes one list or map of `items` values.
pub fn container(items: usize) -> Result<(), Error> {
    charge(items.saturating_mul(std::mem::size_of::<Value>()))?;
    BUDGET.with_borrow_mut(|b| {
        if b.containers == 0 {
            b.exhausted = true;
            return Err(Error::new(ErrorKind::InvalidOperation, "the template makes too many lists"));
        }
        b.containers -= 1;
        Ok(())
    })
}

/// Refuses namespaces and macros as parts of other values: they could hold themselves, which reference counts never
/// free. Chat templates have no use for it.
pub fn storable<'a>(values: impl IntoIterator<Item = &'a Value>) -> Result<(), Error> {
    let holds = |value: &Value| {
        value.as_object().is_some_and(|object| {
            let name = object.type_name();
            value.kind() == ValueKind::Plain || name.ends_with("::Namespace") || name.ends_with("::Macro")
        })
    };
    match values.into_iter().any(holds) {
        true => Err(Error::new(ErrorKind::InvalidOperation, "a value cannot hold a namespace or a macro")),
        false => Ok(()),
    }
}

pub fn list(items: Vec<Value>) -> Result<Value, Error> {
    storable(&items)?;
    container(items.len())?;
    Ok(Value::from(items))
}
