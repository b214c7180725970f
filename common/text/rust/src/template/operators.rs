//! Python's operators, for the calls that rewrite.rs prints.

use minijinja::value::{Rest, ValueKind};
use minijinja::{Environment, Error, ErrorKind, Value};

use super::budget;
use super::format::percent;
use super::python::{fail, text, type_name};
use super::tuple::{is_tuple, tuple};

pub fn install(env: &mut Environment) {
    env.add_function("__add", |terms: Rest<Value>| {
        let (first, rest) = terms.split_first().ok_or_else(|| fail("nothing to add"))?;
        rest.iter().try_fold(first.clone(), |sum, term| add(&sum, term))
    });
    env.add_function("__sub", |a: &Value, b: &Value| {
        arithmetic("-", a, b, i128::checked_sub, |x, y| Ok(x - y))
    });
    env.add_function("__mul", |a: &Value, b: &Value| mul(a, b));
    env.add_function("__div", |a: &Value, b: &Value| match (number(a), number(b)) {
        (Some(x), Some(y)) => nonzero(y).map(|_| Value::from(x.float() / y.float())),
        _ => Err(unsupported("/", a, b)),
    });
    env.add_function("__floordiv", |a: &Value, b: &Value| {
        divisor(b)?;
        arithmetic("//", a, b, floor_div, |x, y| Ok((x / y).floor()))
    });
    env.add_function("__mod", |a: &Value, b: &Value| {
        if let Some(format) = a.as_str() {
            return percent(format, b);
        }
        divisor(b)?;
        arithmetic("%", a, b, |x, y| Some(x - floor_div(x, y)? * y), |x, y| Ok(x - y * (x / y).floor()))
    });
    env.add_function("__pow", |a: &Value, b: &Value| {
        let negative = matches!(number(b), Some(Number::Int(n)) if n < 0);
        let whole = |x: i128, y: i128| x.checked_pow(u32::try_from(y).ok()?);
        if negative {
            return float_pow(
                number(a).ok_or_else(|| unsupported("**", a, b))?.float(),
                number(b).map_or(0.0, Number::float),
            )
            .map(Value::from);
        }
        arithmetic("**", a, b, whole, float_pow)
    });
    env.add_function("__neg", |a: &Value| match number(a) {
        Some(Number::Int(n)) => n.checked_neg().map(int).ok_or_else(too_large),
        Some(Number::Float(x)) => Ok(Value::from(-x)),
        None => {
            Err(undefined(a)
                .unwrap_or_else(|| fail(format!("bad operand type for unary -: '{}'", type_name(a)))))
        }
    });
    env.add_function("__cat", |parts: Rest<Value>| {
        let mut out = String::new();
        for part in parts.iter() {
            out.push_str(&text(part)?);
            budget::fits(out.len())?;
        }
        budget::text(out)
    });
    env.add_function("__in", |a: &Value, b: &Value| contains(b, a));
    env.add_function("__item", |a: &Value, key: &Value| item(a, key));
    env.add_function("__slice", |a: &Value, start: &Value, stop: &Value, step: &Value| {
        slice(a, start, stop, step)
    });
    env.add_function("__iter", |a: &Value| iterable(a).map(|_| a.clone()));
    env.add_function("__list", |items: Rest<Value>| budget::list(items.0));
    env.add_function("__storable", |value: Value| budget::storable([&value]).map(|()| value));
    env.add_function("__tuple", |items: Rest<Value>| tuple(items.0));
    env.add_function("__lt", |a: &Value, b: &Value| less(a, b));
    env.add_function("__le", |a: &Value, b: &Value| Ok::<_, Error>(less(a, b)? || a == b));
    env.add_function("__gt", |a: &Value, b: &Value| less(b, a));
    env.add_function("__ge", |a: &Value, b: &Value| Ok::<_, Error>(less(b, a)? || a == b));
    env.add_function("__dict", |items: Rest<Value>| {
        budget::storable(items.iter())?;
        budget::container(items.len())?;
        Ok::<_, Error>(
            items.chunks_exact(2).map(|pair| (pair[0].clone(), pair[1].clone())).collect::<Value>(),
        )
    });
}

#[derive(Clone, Copy)]
pub enum Number {
    Int(i128),
    Float(f64),
}

impl Number {
    pub fn float(self) -> f64 {
        match self {
            Number::Int(n) => n as f64,
            Number::Float(x) => x,
        }
    }
}

/// The number that Python computes with: bool is an int.
pub fn number(value: &Value) -> Option<Number> {
    match value.kind() {
        ValueKind::Bool => Some(Number::Int(i128::from(value.is_true()))),
        ValueKind::Number if value.is_integer() => i128::try_from(value.clone()).ok().map(Number::Int),
        ValueKind::Number => f64::try_from(value.clone()).ok().map(Number::Float),
        _ => None,
    }
}

pub fn int(value: i128) -> Value {
    i64::try_from(value).map_or_else(|_| Value::from(value), Value::from)
}

fn too_large() -> Error {
    fail("a number is too large")
}

fn undefined(value: &Value) -> Option<Error> {
    value.is_undefined().then(|| Error::new(ErrorKind::UndefinedError, "an operand is undefined"))
}

fn unsupported(sign: &str, a: &Value, b: &Value) -> Error {
    undefined(a).or_else(|| undefined(b)).unwrap_or_else(|| {
        fail(format!("unsupported operand types for {sign}: '{}' and '{}'", type_name(a), type_name(b)))
    })
}

fn nonzero(value: Number) -> Result<(), Error> {
    if value.float() == 0.0 {
        Err(fail("division by zero"))
    } else {
        Ok(())
    }
}

fn divisor(value: &Value) -> Result<(), Error> {
    number(value).map_or(Ok(()), nonzero)
}

fn floor_div(x: i128, y: i128) -> Option<i128> {
    let quotient = x.checked_div(y)?;
    Some(if x % y != 0 && (x < 0) != (y < 0) { quotient - 1 } else { quotient })
}

fn float_pow(x: f64, y: f64) -> Result<f64, Error> {
    if x == 0.0 && y < 0.0 {
        Err(fail("0.0 cannot be raised to a negative power"))
    } else {
        Ok(x.powf(y))
    }
}

fn arithmetic(
    sign: &str,
    a: &Value,
    b: &Value,
    whole: impl Fn(i128, i128) -> Option<i128>,
    real: impl Fn(f64, f64) -> Result<f64, Error>,
) -> Result<Value, Error> {
    match (number(a), number(b)) {
        (Some(Number::Int(x)), Some(Number::Int(y))) => whole(x, y).map(int).ok_or_else(too_large),
        (Some(x), Some(y)) => real(x.float(), y.float()).map(Value::from),
        _ => Err(unsupported(sign, a, b)),
    }
}

fn is_list(value: &Value) -> bool {
    matches!(value.kind(), ValueKind::Seq | ValueKind::Iterable)
}

/// a < b, for what Python can order.
pub fn less(a: &Value, b: &Value) -> Result<bool, Error> {
    let alike = a.kind() == ValueKind::String && b.kind() == ValueKind::String
        || is_list(a) && is_list(b)
        || number(a).is_some() && number(b).is_some();
    if alike {
        Ok(a < b)
    } else {
        Err(unsupported("<", a, b))
    }
}

pub fn add(a: &Value, b: &Value) -> Result<Value, Error> {
    if let (Some(x), Some(y)) = (a.as_str(), b.as_str()) {
        budget::charge(x.len() + y.len())?;
        return Ok(Value::from([x, y].concat()));
    }
    if is_list(a) && is_list(b) {
        let make = if is_tuple(a) && is_tuple(b) { tuple } else { budget::list };
        return make(a.try_iter()?.chain(b.try_iter()?).collect());
    }
    arithmetic("+", a, b, i128::checked_add, |x, y| Ok(x + y))
}

fn mul(a: &Value, b: &Value) -> Result<Value, Error> {
    for (what, times) in [(a, b), (b, a)] {
        let Some(Number::Int(times)) = number(times) else { continue };
        let times = usize::try_from(times.max(0)).unwrap_or(usize::MAX);
        if let Some(text) = what.as_str() {
            budget::charge(text.len().saturating_mul(times))?;
            return Ok(Value::from(text.repeat(times)));
        }
        if is_list(what) {
            let items: Vec<Value> = what.try_iter()?.collect();
            budget::container(items.len().saturating_mul(times))?;
            return Ok(std::iter::repeat_n(items, times).flatten().collect());
        }
    }
    arithmetic("*", a, b, i128::checked_mul, |x, y| Ok(x * y))
}

pub fn contains(container: &Value, value: &Value) -> Result<Value, Error> {
    Ok(Value::from(match container.kind() {
        ValueKind::Undefined => false,
        ValueKind::String => match value.as_str() {
            Some(part) => container.as_str().unwrap_or_default().contains(part),
            None => return Err(fail("'in <string>' requires string as left operand")),
        },
        ValueKind::Map => container.try_iter()?.any(|key| key == *value),
        ValueKind::Seq | ValueKind::Iterable => container.try_iter()?.any(|item| item == *value),
        _ => return Err(fail(format!("argument of type '{}' is not iterable", type_name(container)))),
    }))
}

fn item(value: &Value, key: &Value) -> Result<Value, Error> {
    match (value.as_str(), number(key)) {
        (Some(text), Some(Number::Int(at))) => {
            let at = if at < 0 { at + text.chars().count() as i128 } else { at };
            let found = usize::try_from(at).ok().and_then(|at| text.chars().nth(at));
            Ok(found.map_or(Value::UNDEFINED, Value::from))
        }
        _ => value.get_item(key),
    }
}

fn slice(value: &Value, start: &Value, stop: &Value, step: &Value) -> Result<Value, Error> {
    let bound = |v: &Value| match (v.is_none(), number(v)) {
        (true, _) => Ok(None),
        (_, Some(Number::Int(n))) => Ok(Some(n)),
        _ => Err(fail("slice indices must be integers or None")),
    };
    let (start, stop, step) = (bound(start)?, bound(stop)?, bound(step)?.unwrap_or(1));
    if step == 0 {
        return Err(fail("slice step cannot be zero"));
    }
    if let Some(text) = value.as_str() {
        let letters: Vec<char> = text.chars().collect();
        return budget::text(pick(&letters, start, stop, step).into_iter().collect());
    }
    if let Some(error) = undefined(value) {
        return Err(error);
    }
    if !is_list(value) {
        return Err(fail(format!("a value of type '{}' cannot be sliced", type_name(value))));
    }
    let items: Vec<Value> = value.try_iter()?.collect();
    let picked = pick(&items, start, stop, step);
    if is_tuple(value) {
        tuple(picked)
    } else {
        budget::list(picked)
    }
}

/// Python's slice.indices.
fn pick<T: Clone>(items: &[T], start: Option<i128>, stop: Option<i128>, step: i128) -> Vec<T> {
    let size = items.len() as i128;
    let (low, high) = if step > 0 { (0, size) } else { (-1, size - 1) };
    let clamp = |bound: Option<i128>, default: i128| {
        bound.map_or(default, |b| if b < 0 { b.saturating_add(size) } else { b }.clamp(low, high))
    };
    let (mut at, end) = if step > 0 {
        (clamp(start, low), clamp(stop, high))
    } else {
        (clamp(start, high), clamp(stop, low))
    };
    let mut picked = Vec::new();
    while if step > 0 { at < end } else { at > end } {
        picked.push(items[at as usize].clone());
        at = at.saturating_add(step);
    }
    picked
}

pub fn iterable(value: &Value) -> Result<(), Error> {
    match value.kind() {
        ValueKind::None | ValueKind::Bool | ValueKind::Number => {
            Err(fail(format!("'{}' object is not iterable", type_name(value))))
        }
        _ => Ok(()),
    }
}
