//! Jinja2's filters and tests where minijinja's differ or are absent.

use minijinja::value::{Kwargs, Rest, ValueKind};
use minijinja::{Environment, Error, ErrorKind, State, Value};

use super::budget;
use super::json::tojson;
use super::methods;
use super::operators::{contains, iterable, number, Number};
use super::python::{fail, is_float, is_space, text, type_name};
use super::tuple::tuple;

pub fn install(env: &mut Environment) {
    env.add_filter("tojson", tojson);
    env.add_filter("string", |v: &Value| budget::text(text(v)?));
    env.add_filter("safe", |v: &Value| budget::text(text(v)?));
    env.add_filter("upper", |v: &Value| budget::text(text(v)?.to_uppercase()));
    env.add_filter("lower", |v: &Value| budget::text(text(v)?.to_lowercase()));
    env.add_filter("capitalize", |v: &Value| budget::text(methods::capitalize(&text(v)?)));
    env.add_filter("title", |v: &Value| budget::text(title(&text(v)?)));
    env.add_filter("trim", |v: &Value, chars: Option<String>| {
        budget::text(methods::strip(&text(v)?, chars.as_deref(), true, true).to_owned())
    });
    env.add_filter("replace", |v: &Value, old: &Value, new: &Value, count: Option<usize>| {
        methods::replace(&text(v)?, &text(old)?, &text(new)?, count.unwrap_or(usize::MAX))
    });
    for name in ["escape", "e", "forceescape"] {
        env.add_filter(name, |v: &Value| budget::text(escape(&text(v)?)));
    }
    for name in ["length", "count"] {
        env.add_filter(name, |v: &Value| length(v));
    }
    env.add_filter("join", join);
    env.add_filter("items", |v: &Value| items(v));
    env.add_filter("list", |v: &Value| elements(v).and_then(budget::list));
    env.add_filter("first", |v: &Value| {
        Ok::<_, Error>(elements(v)?.first().cloned().unwrap_or(Value::UNDEFINED))
    });
    env.add_filter("last", |v: &Value| {
        Ok::<_, Error>(elements(v)?.last().cloned().unwrap_or(Value::UNDEFINED))
    });
    env.add_filter("reverse", |v: &Value| {
        if let Some(text) = v.as_str() {
            return budget::text(text.chars().rev().collect());
        }
        let mut all = elements(v)?;
        all.reverse();
        budget::list(all)
    });
    env.add_filter("int", to_int);
    env.add_filter("float", to_float);
    env.add_filter("round", round);
    env.add_filter("abs", |v: &Value| match number(v) {
        Some(Number::Int(n)) => Ok(super::operators::int(n.abs())),
        Some(Number::Float(x)) => Ok(Value::from(x.abs())),
        None => Err(fail(format!("bad operand type for abs(): '{}'", type_name(v)))),
    });
    env.add_filter("indent", indent);
    env.add_filter("center", |v: &Value, width: Option<i64>| {
        methods::center(&text(v)?, Some(width.unwrap_or(80).into()), " ")
    });
    env.add_filter("wordcount", |v: &Value| {
        Ok::<_, Error>(
            text(v)?.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|w| !w.is_empty()).count(),
        )
    });
    env.add_filter("format", |v: &Value, args: Rest<Value>| {
        let one = args.0.len() == 1 && args.0[0].is_kwargs();
        super::format::percent(&text(v)?, &if one { args.0[0].clone() } else { Value::from(args.0) })
    });
    env.add_filter("pprint", |v: &Value| budget::text(super::python::repr(v)?));
    env.add_filter("striptags", |v: &Value| budget::text(strip_tags(&text(v)?)));
    env.add_filter("xmlattr", |v: &Value, space: Option<bool>| xmlattr(v, space.unwrap_or(true)));
    tests(env);
}

fn tests(env: &mut Environment) {
    env.add_test("sequence", |v: &Value| {
        matches!(
            v.kind(),
            ValueKind::String | ValueKind::Seq | ValueKind::Map | ValueKind::Undefined | ValueKind::Iterable
        )
    });
    env.add_test("iterable", |v: &Value| iterable(v).is_ok() && v.kind() != ValueKind::Plain);
    env.add_test("callable", |v: &Value| {
        v.kind() == ValueKind::Plain
            || v.as_object().is_some_and(|object| object.type_name().ends_with("::Macro"))
    });
    env.add_test("string", |v: &Value| v.kind() == ValueKind::String);
    env.add_test("number", |v: &Value| number(v).is_some());
    env.add_test("integer", |v: &Value| v.is_integer() && v.kind() == ValueKind::Number);
    env.add_test("float", is_float);
    env.add_test("boolean", |v: &Value| v.kind() == ValueKind::Bool);
    env.add_test("in", |v: &Value, all: &Value| contains(all, v).map(|found| found.is_true()));
    env.add_test("lower", |v: &Value| cased(v, char::is_lowercase, char::is_uppercase));
    env.add_test("upper", |v: &Value| cased(v, char::is_uppercase, char::is_lowercase));
}

fn cased(v: &Value, wanted: fn(char) -> bool, other: fn(char) -> bool) -> Result<bool, Error> {
    let text = text(v)?;
    Ok(text.chars().any(wanted) && !text.chars().any(other))
}

/// list(value): letters of a text, keys of a dict.
pub fn elements(value: &Value) -> Result<Vec<Value>, Error> {
    iterable(value)?;
    Ok(value.try_iter()?.collect())
}

pub fn items(value: &Value) -> Result<Value, Error> {
    if value.is_undefined() {
        return budget::list(Vec::new());
    }
    if value.kind() != ValueKind::Map {
        return Err(fail("Can only get item pairs from a mapping."));
    }
    let pair = |key: Value| tuple(vec![key.clone(), value.get_item(&key)?]);
    let pairs: Vec<Value> = value.try_iter()?.map(pair).collect::<Result<_, _>>()?;
    budget::list(pairs)
}

fn length(value: &Value) -> Result<Value, Error> {
    match value.kind() {
        ValueKind::Undefined => Ok(Value::from(0)),
        ValueKind::String => Ok(Value::from(value.as_str().unwrap_or_default().chars().count())),
        ValueKind::Seq | ValueKind::Map | ValueKind::Iterable => Ok(Value::from(value.try_iter()?.count())),
        _ => Err(fail(format!("object of type '{}' has no len()", type_name(value)))),
    }
}

pub fn attribute(item: &Value, path: &Value) -> Result<Value, Error> {
    let Some(path) = path.as_str() else { return item.get_item(path) };
    path.split('.').try_fold(item.clone(), |value, part| match part.parse::<usize>() {
        Ok(index) => value.get_item_by_index(index),
        Err(_) => value.get_attr(part),
    })
}

fn join(
    value: &Value,
    separator: Option<Value>,
    path: Option<Value>,
    kwargs: Kwargs,
) -> Result<Value, Error> {
    let separator = separator.or(kwargs.get("d")?).map_or(Ok(String::new()), |d| text(&d))?;
    let path: Option<Value> = path.or(kwargs.get("attribute")?);
    kwargs.assert_all_used()?;
    let mut out = String::new();
    for (i, item) in elements(value)?.iter().enumerate() {
        let item = path.as_ref().map_or(Ok(item.clone()), |path| attribute(item, path))?;
        out.push_str(if i > 0 { &separator } else { "" });
        out.push_str(&text(&item)?);
        budget::fits(out.len())?;
    }
    budget::text(out)
}

fn integer(text: &str, base: u32) -> Option<Value> {
    let text = text.trim_matches(is_space).replace('_', "");
    let (sign, digits) = match text.strip_prefix('-') {
        Some(rest) => (-1, rest),
        None => (1, text.strip_prefix('+').unwrap_or(&text)),
    };
    let lower = digits.to_ascii_lowercase();
    let prefix = match base {
        16 => "0x",
        8 => "0o",
        2 => "0b",
        _ => "\0",
    };
    let digits = lower.strip_prefix(prefix).unwrap_or(&lower);
    i128::from_str_radix(digits, base).ok().map(|n| super::operators::int(sign * n))
}

fn to_int(value: &Value, default: Option<Value>, base: Option<u32>, kwargs: Kwargs) -> Result<Value, Error> {
    let default = default.or(kwargs.get("default")?).unwrap_or(Value::from(0));
    let base = base.or(kwargs.get("base")?).unwrap_or(10);
    kwargs.assert_all_used()?;
    let whole = |x: f64| x.is_finite().then(|| super::operators::int(x.trunc() as i128));
    let found = match (value.as_str(), number(value)) {
        (Some(text), _) if (2..=36).contains(&base) => integer(text, base).or_else(|| whole(real(text)?)),
        (_, Some(Number::Int(n))) => Some(super::operators::int(n)),
        (_, Some(Number::Float(x))) => whole(x),
        _ => None,
    };
    Ok(found.unwrap_or(default))
}

fn real(text: &str) -> Option<f64> {
    text.trim_matches(is_space).replace('_', "").parse().ok()
}

fn to_float(value: &Value, default: Option<Value>, kwargs: Kwargs) -> Result<Value, Error> {
    let default = default.or(kwargs.get("default")?).unwrap_or(Value::from(0.0));
    let found = value.as_str().map_or_else(|| number(value).map(Number::float), real);
    Ok(found.map_or(default, Value::from))
}

/// round(value, precision=0, method="common"); a float for a float and for ceil and floor, as in Jinja2.
fn round(
    value: &Value,
    precision: Option<i32>,
    method: Option<String>,
    kwargs: Kwargs,
) -> Result<Value, Error> {
    let precision = precision.or(kwargs.get("precision")?).unwrap_or(0);
    let method = method.or(kwargs.get("method")?).unwrap_or("common".into());
    let number = number(value).ok_or_else(|| fail("round: a number is required"))?;
    let scale = 10f64.powi(precision);
    Ok(Value::from(match (method.as_str(), number) {
        ("common", Number::Int(n)) if precision >= 0 => return Ok(super::operators::int(n)),
        // The nearest decimal, ties to even, of the number's exact value: what Rust's formatting gives.
        ("common", n) if (0..=300).contains(&precision) => {
            format!("{:.*}", precision as usize, n.float()).parse().unwrap_or(f64::NAN)
        }
        ("common", Number::Int(n)) => {
            let rounded = (n as f64 * scale).round_ties_even() / scale;
            return Ok(super::operators::int(rounded as i128));
        }
        ("common", n) => (n.float() * scale).round_ties_even() / scale,
        ("ceil", n) => (n.float() * scale).ceil() / scale,
        ("floor", n) => (n.float() * scale).floor() / scale,
        _ => return Err(fail("method must be common, ceil or floor")),
    }))
}

/// indent(text, width=4, first=False, blank=False); width may be the text to indent with.
fn indent(
    value: &Value,
    width: Option<Value>,
    first: Option<bool>,
    blank: Option<bool>,
    kwargs: Kwargs,
) -> Result<Value, Error> {
    let width = width.or(kwargs.get("width")?).unwrap_or(Value::from(4));
    let first = first.or(kwargs.get("first")?).unwrap_or(false);
    let blank = blank.or(kwargs.get("blank")?).unwrap_or(false);
    kwargs.assert_all_used()?;
    let indention = match width.as_str() {
        Some(text) => text.to_owned(),
        None => " ".repeat(width.as_i64().unwrap_or(0).clamp(0, 10_000) as usize),
    };
    let source = text(value)?;
    let mut out = String::new();
    for (i, line) in source.split('\n').enumerate() {
        out.push_str(if i > 0 { "\n" } else { "" });
        if (i == 0 && first) || (i > 0 && (blank || !line.is_empty())) {
            out.push_str(&indention);
        }
        out.push_str(line);
        budget::fits(out.len())?;
    }
    budget::text(out)
}

/// Jinja's title: a word starts after white space, a hyphen or an opening bracket.
fn title(text: &str) -> String {
    let mut start = true;
    text.chars().fold(String::new(), |mut out, c| {
        if start {
            out.extend(c.to_uppercase())
        } else {
            out.extend(c.to_lowercase())
        }
        start = is_space(c) || "-({[<".contains(c);
        out
    })
}

fn escape(text: &str) -> String {
    text.chars().fold(String::new(), |mut out, c| {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&#34;"),
            '\'' => out.push_str("&#39;"),
            c => out.push(c),
        }
        out
    })
}

fn strip_tags(text: &str) -> String {
    let mut plain = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('<') {
        plain.push_str(before);
        match after.split_once('>') {
            Some((_, tail)) => rest = tail,
            None => {
                plain.push('<');
                rest = after;
            }
        }
    }
    plain.push_str(rest);
    plain.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn xmlattr(value: &Value, space: bool) -> Result<Value, Error> {
    let mut parts = Vec::new();
    for key in elements(value)? {
        let item = value.get_item(&key)?;
        if !item.is_none() && !item.is_undefined() {
            parts.push(format!("{}=\"{}\"", escape(&text(&key)?), escape(&text(&item)?)));
        }
    }
    let joined = parts.join(" ");
    budget::text(if space && !joined.is_empty() { format!(" {joined}") } else { joined })
}

/// The body of {% generation %}, which transformers runs as a call block.
pub fn generation(state: &State, kwargs: Kwargs) -> Result<Value, Error> {
    let caller: Value = kwargs.get("caller")?;
    caller.call(state, &[])
}

pub fn raise_exception(message: &Value) -> Result<Value, Error> {
    Err(budget::raised(text(message)?))
}

pub fn strftime_now(format: &str) -> Result<Value, Error> {
    if format.len() > 4096 {
        return Err(Error::new(ErrorKind::InvalidOperation, "strftime_now: the format is too long"));
    }
    budget::text(super::strftime::strftime(format, budget::now()))
}
