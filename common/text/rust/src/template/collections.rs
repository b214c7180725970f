//! Jinja2's filters over lists and dicts, with its order of positional arguments.

use minijinja::value::{from_args, Kwargs, Rest, ValueKind};
use minijinja::{Environment, Error, State, Value};

use super::budget;
use super::filters::{attribute, elements};
use super::operators::{add, less};
use super::python::{fail, is_space, text};
use super::tuple::tuple;

pub fn install(env: &mut Environment) {
    env.add_filter("dictsort", dictsort);
    env.add_filter("sum", sum);
    env.add_filter("min", |value: &Value, args: Rest<Value>| extreme(value, &args, false));
    env.add_filter("max", |value: &Value, args: Rest<Value>| extreme(value, &args, true));
    env.add_filter("wordwrap", wordwrap);
    env.add_filter("random", |value: &Value| {
        // Any choice is right; the first is one.
        Ok::<_, Error>(elements(value)?.first().cloned().unwrap_or(Value::UNDEFINED))
    });
    env.add_filter("filesizeformat", minijinja_contrib::filters::filesizeformat);
    named(
        env,
        "truncate",
        Value::from_function(minijinja_contrib::filters::truncate),
        &["length", "killwords", "end", "leeway"],
    );
    named(
        env,
        "sort",
        Value::from_function(minijinja::filters::sort),
        &["reverse", "case_sensitive", "attribute"],
    );
    named(env, "unique", Value::from_function(minijinja::filters::unique), &["case_sensitive", "attribute"]);
    env.add_function("cycler", |items: Rest<Value>| minijinja_contrib::globals::cycler(items.0));
    env.add_function("joiner", minijinja_contrib::globals::joiner);
    env.add_function("dict", |args: Rest<Value>| dict(&args));
    env.add_function("namespace", |args: Rest<Value>| minijinja::functions::namespace(Some(dict(&args)?)));
}

/// Arguments by Jinja2's names, whether given by place or by name.
fn bind<const N: usize>(args: &[Value], names: [&str; N]) -> Result<[Option<Value>; N], Error> {
    let (positional, kwargs): (&[Value], Kwargs) = from_args(args)?;
    if positional.len() > N {
        return Err(fail("too many arguments"));
    }
    let mut bound = [const { None }; N];
    for (i, name) in names.iter().enumerate() {
        bound[i] = match positional.get(i) {
            Some(value) => Some(value.clone()),
            None => kwargs.get::<Option<Value>>(name)?,
        };
    }
    kwargs.assert_all_used()?;
    Ok(bound)
}

/// Adds a filter of minijinja's that takes named arguments only.
fn named(env: &mut Environment, name: &'static str, inner: Value, names: &'static [&'static str]) {
    env.add_filter(name, move |state: &State, value: &Value, args: Rest<Value>| {
        let (positional, kwargs): (&[Value], Kwargs) = from_args(&args)?;
        if positional.len() > names.len() {
            return Err(fail("too many arguments"));
        }
        let mut all: Vec<(&str, Value)> = names.iter().copied().zip(positional.iter().cloned()).collect();
        for name in kwargs.args() {
            all.push((name, kwargs.peek(name)?));
        }
        inner.call(state, &[value.clone(), Kwargs::from_iter(all).into()])
    });
}

fn truth(value: &Option<Value>) -> bool {
    value.as_ref().is_some_and(Value::is_true)
}

fn folded(value: &Value) -> Value {
    value.as_str().map_or_else(|| value.clone(), |text| Value::from(text.to_lowercase()))
}

fn dictsort(value: &Value, args: Rest<Value>) -> Result<Value, Error> {
    let [case_sensitive, by, reverse] = bind(&args, ["case_sensitive", "by", "reverse"])?;
    if value.kind() != ValueKind::Map {
        return Err(fail("dictsort: a dict is required"));
    }
    let at = match by.as_ref().and_then(Value::as_str) {
        None | Some("key") => 0,
        Some("value") => 1,
        Some(_) => return Err(fail("You can only sort by either \"key\" or \"value\"")),
    };
    let mut pairs = Vec::new();
    for key in elements(value)? {
        let pair = [key.clone(), value.get_item(&key)?];
        pairs.push((if truth(&case_sensitive) { pair[at].clone() } else { folded(&pair[at]) }, pair));
    }
    pairs.sort_by(|a, b| if truth(&reverse) { b.0.cmp(&a.0) } else { a.0.cmp(&b.0) });
    budget::list(pairs.into_iter().map(|(_, pair)| tuple(pair.to_vec())).collect::<Result<_, _>>()?)
}

fn sum(value: &Value, args: Rest<Value>) -> Result<Value, Error> {
    let [path, start] = bind(&args, ["attribute", "start"])?;
    elements(value)?.iter().try_fold(start.unwrap_or(Value::from(0)), |total, item| {
        add(&total, &path.as_ref().map_or(Ok(item.clone()), |path| attribute(item, path))?)
    })
}

fn extreme(value: &Value, args: &[Value], largest: bool) -> Result<Value, Error> {
    let [case_sensitive, path] = bind(args, ["case_sensitive", "attribute"])?;
    let mut best: Option<(Value, Value)> = None;
    for item in elements(value)? {
        let key = path.as_ref().map_or(Ok(item.clone()), |path| attribute(&item, path))?;
        let key = if truth(&case_sensitive) { key } else { folded(&key) };
        let better = match &best {
            None => true,
            Some((top, _)) if largest => less(top, &key)?,
            Some((top, _)) => less(&key, top)?,
        };
        if better {
            best = Some((key, item));
        }
    }
    Ok(best.map_or(Value::UNDEFINED, |(_, item)| item))
}

/// dict(mapping or pairs, **names).
fn dict(args: &[Value]) -> Result<Value, Error> {
    let (positional, kwargs): (&[Value], Kwargs) = from_args(args)?;
    let mut pairs = Vec::new();
    for source in positional {
        let mapping = source.kind() == ValueKind::Map;
        for item in elements(source)? {
            pairs.push(if mapping {
                (item.clone(), source.get_item(&item)?)
            } else {
                match &elements(&item)?[..] {
                    [key, value] => (key.clone(), value.clone()),
                    _ => return Err(fail("dict: each element must be a pair")),
                }
            });
        }
    }
    for name in kwargs.args() {
        pairs.push((Value::from(name), kwargs.peek(name)?));
    }
    budget::storable(pairs.iter().map(|(_, value)| value))?;
    budget::container(pairs.len())?;
    Ok(pairs.into_iter().collect())
}

/// wordwrap(text, width=79, break_long_words=True, wrapstring="\n", break_on_hyphens=True), lines kept.
fn wordwrap(value: &Value, args: Rest<Value>) -> Result<Value, Error> {
    let [width, long, mark, _] =
        bind(&args, ["width", "break_long_words", "wrapstring", "break_on_hyphens"])?;
    let width = width.and_then(|w| w.as_usize()).unwrap_or(79).max(1);
    let long = long.is_none_or(|v| v.is_true());
    let mark = mark.map_or(Ok("\n".to_owned()), |m| text(&m))?;
    let source = text(value)?;
    let mut lines = Vec::new();
    for line in source.lines() {
        let mut current = String::new();
        for word in line.split(is_space).filter(|w| !w.is_empty()) {
            let mut letters: Vec<char> = word.chars().collect();
            let used = current.chars().count();
            if used > 0 && used + 1 + letters.len() > width {
                lines.push(std::mem::take(&mut current));
            }
            while long && current.is_empty() && letters.len() > width {
                lines.push(letters.drain(..width).collect());
            }
            current.push_str(if current.is_empty() { "" } else { " " });
            current.extend(letters);
        }
        lines.push(current);
    }
    budget::text(lines.join(&mark))
}
