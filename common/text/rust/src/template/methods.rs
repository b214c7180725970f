//! Methods of Python's str, dict and list, as templates call them.

use minijinja::value::ValueKind;
use minijinja::{Error, ErrorKind, State, Value};

use super::budget;
use super::format::braces;
use super::operators::{number, Number};
use super::python::{fail, is_space, type_name};

/// Positional arguments, and named ones.
struct Args<'a> {
    positional: &'a [Value],
    named: Option<&'a Value>,
}

impl<'a> Args<'a> {
    fn new(all: &'a [Value]) -> Self {
        match all.split_last() {
            Some((last, rest)) if last.is_kwargs() => Self { positional: rest, named: Some(last) },
            _ => Self { positional: all, named: None },
        }
    }

    fn get(&self, at: usize, name: &str) -> Option<Value> {
        let named = || self.named.and_then(|n| n.get_attr(name).ok()).filter(|v| !v.is_undefined());
        self.positional.get(at).cloned().or_else(named)
    }

    fn some(&self, at: usize, name: &str) -> Option<Value> {
        self.get(at, name).filter(|v| !v.is_none())
    }

    fn string(&self, at: usize, name: &str) -> Result<Option<String>, Error> {
        self.some(at, name).map_or(Ok(None), |v| match v.as_str() {
            Some(text) => Ok(Some(text.to_owned())),
            None => Err(fail(format!("a str is required, not '{}'", type_name(&v)))),
        })
    }

    fn need(&self, at: usize, name: &str) -> Result<String, Error> {
        self.string(at, name)?
            .ok_or_else(|| Error::new(ErrorKind::MissingArgument, format!("argument {name} is missing")))
    }

    fn int(&self, at: usize, name: &str) -> Result<Option<i128>, Error> {
        self.some(at, name).map_or(Ok(None), |v| match number(&v) {
            Some(Number::Int(n)) => Ok(Some(n)),
            _ => Err(fail("an integer is required")),
        })
    }
}

pub fn call(state: &State, value: &Value, name: &str, args: &[Value]) -> Result<Value, Error> {
    let a = Args::new(args);
    let found = match value.kind() {
        ValueKind::String => string(value.as_str().unwrap_or_default(), name, &a)?,
        ValueKind::Map => dict(value, name, &a)?,
        ValueKind::Seq | ValueKind::Iterable => list(value, name, &a)?,
        _ => None,
    };
    match found {
        Some(result) => Ok(result),
        None => minijinja_contrib::pycompat::unknown_method_callback(state, value, name, args),
    }
}

fn dict(value: &Value, name: &str, a: &Args) -> Result<Option<Value>, Error> {
    let keys = || value.try_iter();
    Ok(Some(match name {
        "keys" => budget::list(keys()?.collect())?,
        "values" => budget::list(keys()?.map(|k| value.get_item(&k)).collect::<Result<_, _>>()?)?,
        "items" => super::filters::items(value)?,
        "get" => {
            let key = a.get(0, "key").ok_or_else(|| fail("get expected at least 1 argument, got 0"))?;
            let found = if keys()?.any(|k| k == key) { Some(value.get_item(&key)?) } else { None };
            found.or_else(|| a.get(1, "default")).unwrap_or(Value::from(()))
        }
        "copy" => value.clone(),
        "pop" | "update" | "clear" | "setdefault" | "popitem" => return Err(unsafe_call("dict", name)),
        _ => return Ok(None),
    }))
}

fn list(value: &Value, name: &str, a: &Args) -> Result<Option<Value>, Error> {
    let wanted = || a.get(0, "value").ok_or_else(|| fail(format!("{name}() takes exactly one argument")));
    Ok(Some(match name {
        "count" => {
            let wanted = wanted()?;
            Value::from(value.try_iter()?.filter(|v| *v == wanted).count())
        }
        "index" => {
            let wanted = wanted()?;
            Value::from(
                value
                    .try_iter()?
                    .position(|v| v == wanted)
                    .ok_or_else(|| fail("the value is not in list"))?,
            )
        }
        "copy" => value.clone(),
        "append" | "extend" | "insert" | "pop" | "remove" | "clear" | "reverse" | "sort" => {
            return Err(unsafe_call("list", name))
        }
        _ => return Ok(None),
    }))
}

/// transformers' sandbox lets nothing be changed in place.
fn unsafe_call(kind: &str, name: &str) -> Error {
    fail(format!("access to attribute '{name}' of '{kind}' object is unsafe"))
}

fn strings<'a>(parts: impl IntoIterator<Item = &'a str>) -> Result<Value, Error> {
    budget::list(parts.into_iter().map(Value::from).collect())
}

fn string(s: &str, name: &str, a: &Args) -> Result<Option<Value>, Error> {
    let flag = |all: fn(char) -> bool| Value::from(!s.is_empty() && s.chars().all(all));
    Ok(Some(match name {
        "strip" => budget::text(strip(s, a.string(0, "chars")?.as_deref(), true, true).to_owned())?,
        "lstrip" => budget::text(strip(s, a.string(0, "chars")?.as_deref(), true, false).to_owned())?,
        "rstrip" => budget::text(strip(s, a.string(0, "chars")?.as_deref(), false, true).to_owned())?,
        "split" => strings(split(s, a.string(0, "sep")?, a.int(1, "maxsplit")?)?)?,
        "rsplit" => strings(rsplit(s, a.string(0, "sep")?, a.int(1, "maxsplit")?)?)?,
        "splitlines" => strings(lines(s, a.get(0, "keepends").is_some_and(|v| v.is_true())))?,
        "startswith" => affix(s, a, |s, part| s.starts_with(part))?,
        "endswith" => affix(s, a, |s, part| s.ends_with(part))?,
        "removeprefix" => Value::from(s.strip_prefix(a.need(0, "prefix")?.as_str()).unwrap_or(s)),
        "removesuffix" => Value::from(s.strip_suffix(a.need(0, "suffix")?.as_str()).unwrap_or(s)),
        "replace" => {
            let count = a
                .int(2, "count")?
                .filter(|n| *n >= 0)
                .map_or(usize::MAX, |n| usize::try_from(n).unwrap_or(usize::MAX));
            replace(s, &a.need(0, "old")?, &a.need(1, "new")?, count)?
        }
        "partition" => {
            let sep = a.need(0, "sep")?;
            let (left, right) = s.split_once(sep.as_str()).map_or((s, None), |(l, r)| (l, Some(r)));
            strings([left, right.map_or("", |_| &sep), right.unwrap_or("")])?
        }
        "rpartition" => {
            let sep = a.need(0, "sep")?;
            let (left, right) = s.rsplit_once(sep.as_str()).map_or((None, s), |(l, r)| (Some(l), r));
            strings([left.unwrap_or(""), left.map_or("", |_| &sep), right])?
        }
        "find" | "rfind" | "index" | "rindex" => {
            let part = a.need(0, "sub")?;
            let found = if name.starts_with('r') { s.rfind(&part) } else { s.find(&part) };
            match found {
                Some(at) => Value::from(s[..at].chars().count()),
                None if name.ends_with("find") => Value::from(-1),
                None => return Err(fail("substring not found")),
            }
        }
        "count" => {
            let part = a.need(0, "sub")?;
            Value::from(if part.is_empty() {
                s.chars().count() + 1
            } else {
                s.matches(part.as_str()).count()
            })
        }
        "join" => {
            let items = a.get(0, "iterable").ok_or_else(|| fail("join() takes exactly one argument"))?;
            let mut parts = Vec::new();
            for item in items.try_iter()? {
                match item.as_str() {
                    Some(text) => parts.push(text.to_owned()),
                    None => {
                        return Err(fail(format!("join: expected str instance, {} found", type_name(&item))))
                    }
                }
            }
            budget::charge(parts.iter().map(|p| p.len() + s.len()).sum())?;
            Value::from(parts.join(s))
        }
        "upper" => budget::text(s.to_uppercase())?,
        "lower" | "casefold" => budget::text(s.to_lowercase())?,
        "title" => budget::text(title(s))?,
        "capitalize" => budget::text(capitalize(s))?,
        "swapcase" => budget::text(
            s.chars()
                .flat_map(|c| {
                    if c.is_uppercase() {
                        c.to_lowercase().collect::<Vec<_>>()
                    } else {
                        c.to_uppercase().collect()
                    }
                })
                .collect(),
        )?,
        "isdigit" | "isdecimal" | "isnumeric" => flag(|c| c.is_numeric()),
        "isalpha" => flag(char::is_alphabetic),
        "isalnum" => flag(char::is_alphanumeric),
        "isspace" => flag(is_space),
        "isascii" => Value::from(s.is_ascii()),
        "isupper" => Value::from(s.chars().any(char::is_uppercase) && !s.chars().any(char::is_lowercase)),
        "islower" => Value::from(s.chars().any(char::is_lowercase) && !s.chars().any(char::is_uppercase)),
        "zfill" => {
            let sign = usize::from(s.starts_with(['-', '+']));
            let zeros = fill(s, a.int(0, "width")?, "0")?;
            Value::from(format!("{}{zeros}{}", &s[..sign], &s[sign..]))
        }
        "ljust" => Value::from(
            s.to_owned() + &fill(s, a.int(0, "width")?, &a.string(1, "fillchar")?.unwrap_or(" ".into()))?,
        ),
        "rjust" => {
            Value::from(fill(s, a.int(0, "width")?, &a.string(1, "fillchar")?.unwrap_or(" ".into()))? + s)
        }
        "center" => center(s, a.int(0, "width")?, &a.string(1, "fillchar")?.unwrap_or(" ".into()))?,
        "format" => braces(s, a.positional, a.named)?,
        _ => return Ok(None),
    }))
}

pub fn strip<'a>(s: &'a str, chars: Option<&str>, left: bool, right: bool) -> &'a str {
    let gone = |c: char| chars.map_or(is_space(c), |set| set.contains(c));
    let s = if left { s.trim_start_matches(gone) } else { s };
    if right {
        s.trim_end_matches(gone)
    } else {
        s
    }
}

fn limit(max: Option<i128>) -> usize {
    max.filter(|n| *n >= 0).map_or(usize::MAX, |n| usize::try_from(n).unwrap_or(usize::MAX))
}

fn split(s: &str, sep: Option<String>, max: Option<i128>) -> Result<Vec<&str>, Error> {
    let max = limit(max);
    match sep.as_deref() {
        Some("") => Err(fail("empty separator")),
        Some(sep) => Ok(s.splitn(max.saturating_add(1), sep).collect()),
        None => {
            let (mut parts, mut rest) = (Vec::new(), s.trim_start_matches(is_space));
            while !rest.is_empty() {
                match rest.find(is_space).filter(|_| parts.len() < max) {
                    Some(at) => {
                        parts.push(&rest[..at]);
                        rest = rest[at..].trim_start_matches(is_space);
                    }
                    None => {
                        parts.push(rest);
                        break;
                    }
                }
            }
            Ok(parts)
        }
    }
}

fn rsplit(s: &str, sep: Option<String>, max: Option<i128>) -> Result<Vec<&str>, Error> {
    let max = limit(max);
    let mut parts: Vec<&str> = match sep.as_deref() {
        Some("") => return Err(fail("empty separator")),
        Some(sep) => s.rsplitn(max.saturating_add(1), sep).collect(),
        None => {
            let (mut parts, mut rest) = (Vec::new(), s.trim_end_matches(is_space));
            while !rest.is_empty() {
                let space =
                    rest.char_indices().rev().find(|(_, c)| is_space(*c)).filter(|_| parts.len() < max);
                let Some((at, c)) = space else {
                    parts.push(rest);
                    break;
                };
                parts.push(&rest[at + c.len_utf8()..]);
                rest = rest[..at].trim_end_matches(is_space);
            }
            parts
        }
    };
    parts.reverse();
    Ok(parts)
}

fn lines(s: &str, keep: bool) -> Vec<&str> {
    let ends = |c: char| {
        matches!(c, '\n' | '\r' | '\x0B' | '\x0C' | '\x1C'..='\x1E' | '\u{85}' | '\u{2028}' | '\u{2029}')
    };
    let (mut parts, mut rest) = (Vec::new(), s);
    while !rest.is_empty() {
        let (at, after) = match rest.find(ends) {
            Some(at) if rest[at..].starts_with("\r\n") => (at, at + 2),
            Some(at) => (at, at + rest[at..].chars().next().map_or(0, char::len_utf8)),
            None => (rest.len(), rest.len()),
        };
        parts.push(&rest[..if keep { after } else { at }]);
        rest = &rest[after..];
    }
    parts
}

fn affix(s: &str, a: &Args, test: fn(&str, &str) -> bool) -> Result<Value, Error> {
    let letters: Vec<char> = s.chars().collect();
    let bound = |n: Option<i128>, default: usize| {
        n.map_or(default, |n| {
            (if n < 0 { n + letters.len() as i128 } else { n }).clamp(0, letters.len() as i128) as usize
        })
    };
    let (from, to) = (bound(a.int(1, "start")?, 0), bound(a.int(2, "end")?, letters.len()));
    let part: String = letters[from.min(to)..to].iter().collect();
    let wanted = a.get(0, "prefix").unwrap_or_default();
    if let Some(text) = wanted.as_str() {
        return Ok(Value::from(test(&part, text)));
    }
    if !matches!(wanted.kind(), ValueKind::Seq | ValueKind::Iterable) {
        return Err(fail(format!("first arg must be str or a tuple of str, not {}", type_name(&wanted))));
    }
    Ok(Value::from(wanted.try_iter()?.any(|w| w.as_str().is_some_and(|text| test(&part, text)))))
}

pub fn replace(s: &str, old: &str, new: &str, count: usize) -> Result<Value, Error> {
    let hits = s.matches(old).count().min(count);
    budget::charge(s.len().saturating_add(hits.saturating_mul(new.len())))?;
    Ok(Value::from(s.replacen(old, new, count)))
}

fn fill(s: &str, width: Option<i128>, with: &str) -> Result<String, Error> {
    let missing = width.unwrap_or(0).saturating_sub(s.chars().count() as i128).max(0);
    let missing = usize::try_from(missing).unwrap_or(usize::MAX);
    budget::charge(missing.saturating_mul(with.len()).saturating_add(s.len()))?;
    Ok(with.repeat(missing))
}

/// str.center: the odd character goes left when the width is odd.
pub fn center(s: &str, width: Option<i128>, with: &str) -> Result<Value, Error> {
    let all = fill(s, width, with)?;
    let missing = all.chars().count();
    let left = missing / 2 + (missing & width.unwrap_or(0).max(0) as usize & 1);
    Ok(Value::from(format!("{}{s}{}", with.repeat(left), with.repeat(missing - left))))
}

pub fn capitalize(s: &str) -> String {
    let mut chars = s.chars();
    chars
        .next()
        .map_or(String::new(), |c| c.to_uppercase().chain(chars.as_str().to_lowercase().chars()).collect())
}

/// str.title: a letter after a non-letter is upper case.
fn title(s: &str) -> String {
    let mut inside = false;
    s.chars().fold(String::new(), |mut out, c| {
        if inside {
            out.extend(c.to_lowercase())
        } else {
            out.extend(c.to_uppercase())
        }
        inside = c.is_alphabetic();
        out
    })
}
