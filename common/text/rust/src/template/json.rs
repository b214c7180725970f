//! The tojson filter that transformers installs: json.dumps, which neither escapes HTML nor sorts keys by itself.

use std::fmt::Write;

use minijinja::value::{from_args, Kwargs, Rest, ValueKind};
use minijinja::{Error, Value};

use super::budget;
use super::python::{fail, float_text, type_name, MAX_DEPTH};

struct Style {
    ascii: bool,
    indent: Option<String>,
    item: String,
    key: String,
    sort: bool,
}

/// tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False).
pub fn tojson(value: &Value, args: Rest<Value>) -> Result<Value, Error> {
    let (positional, kwargs): (&[Value], Kwargs) = from_args(&args)?;
    let mut at = 0;
    let mut pick = |name| {
        at += 1;
        match positional.get(at - 1) {
            Some(value) => Ok(value.clone()),
            None => kwargs.get::<Option<Value>>(name).map(Option::unwrap_or_default),
        }
    };
    let ascii = pick("ensure_ascii")?;
    let indent = pick("indent")?;
    let separators = pick("separators")?;
    let sort = pick("sort_keys")?;
    kwargs.assert_all_used()?;
    let indent = match indent.kind() {
        ValueKind::None | ValueKind::Undefined => None,
        ValueKind::String => indent.as_str().map(str::to_owned),
        _ => Some(
            " ".repeat(indent.as_i64().map_or(usize::from(indent.is_true()), |n| n.clamp(0, 100) as usize)),
        ),
    };
    let mut style = Style {
        ascii: ascii.is_true(),
        item: if indent.is_some() { "," } else { ", " }.to_owned(),
        key: ": ".to_owned(),
        indent,
        sort: sort.is_true(),
    };
    if !separators.is_none() && !separators.is_undefined() {
        let pair: Vec<Value> = separators.try_iter()?.collect();
        match pair.iter().map(Value::as_str).collect::<Option<Vec<_>>>().as_deref() {
            Some([item, key]) => (style.item, style.key) = (item.to_string(), key.to_string()),
            _ => return Err(fail("tojson: separators must be two strings")),
        }
    }
    let mut out = String::new();
    style.write(&mut out, value, 0)?;
    budget::text(out)
}

impl Style {
    fn write(&self, out: &mut String, value: &Value, depth: usize) -> Result<(), Error> {
        if depth > MAX_DEPTH {
            return Err(fail("tojson: the value nests too deep"));
        }
        match value.kind() {
            ValueKind::None => out.push_str("null"),
            ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number if value.is_integer() => _ = write!(out, "{value}"),
            ValueKind::Number => out.push_str(&float(f64::try_from(value.clone())?)),
            ValueKind::String => self.string(out, value.as_str().unwrap_or_default()),
            ValueKind::Seq | ValueKind::Iterable => {
                let items: Vec<Value> = value.try_iter()?.collect();
                self.wrap(out, ('[', ']'), depth, &items, |out, item| self.write(out, item, depth + 1))?;
            }
            ValueKind::Map => {
                let mut keys = Vec::new();
                for key in value.try_iter()? {
                    keys.push((key_text(&key)?, value.get_item(&key)?));
                }
                if self.sort {
                    keys.sort_by(|a, b| a.0.cmp(&b.0));
                }
                self.wrap(out, ('{', '}'), depth, &keys, |out, (key, item)| {
                    self.string(out, key);
                    out.push_str(&self.key);
                    self.write(out, item, depth + 1)
                })?;
            }
            _ => return Err(fail(format!("Object of type {} is not JSON serializable", type_name(value)))),
        }
        budget::fits(out.len())
    }

    fn wrap<T>(
        &self,
        out: &mut String,
        (open, close): (char, char),
        depth: usize,
        items: &[T],
        mut each: impl FnMut(&mut String, &T) -> Result<(), Error>,
    ) -> Result<(), Error> {
        out.push(open);
        let line = |out: &mut String, depth: usize| {
            if let Some(indent) = &self.indent {
                out.push('\n');
                (0..depth).for_each(|_| out.push_str(indent));
            }
        };
        for (i, item) in items.iter().enumerate() {
            out.push_str(if i > 0 { &self.item } else { "" });
            line(out, depth + 1);
            each(out, item)?;
        }
        if !items.is_empty() {
            line(out, depth);
        }
        out.push(close);
        Ok(())
    }

    fn string(&self, out: &mut String, text: &str) {
        out.push('"');
        for c in text.chars() {
            match c {
                '"' => out.push_str("\\\""),
                '\\' => out.push_str("\\\\"),
                '\n' => out.push_str("\\n"),
                '\r' => out.push_str("\\r"),
                '\t' => out.push_str("\\t"),
                '\x08' => out.push_str("\\b"),
                '\x0C' => out.push_str("\\f"),
                c if (c as u32) < 0x20 => _ = write!(out, "\\u{:04x}", c as u32),
                c if self.ascii && !(' '..='~').contains(&c) => {
                    c.encode_utf16(&mut [0; 2]).iter().for_each(|unit| _ = write!(out, "\\u{unit:04x}"));
                }
                c => out.push(c),
            }
        }
        out.push('"');
    }
}

fn float(value: f64) -> String {
    match value {
        v if v.is_nan() => "NaN".to_owned(),
        f64::INFINITY => "Infinity".to_owned(),
        f64::NEG_INFINITY => "-Infinity".to_owned(),
        v => float_text(v),
    }
}

fn key_text(key: &Value) -> Result<String, Error> {
    Ok(match key.kind() {
        ValueKind::String => key.as_str().unwrap_or_default().to_owned(),
        ValueKind::None => "null".to_owned(),
        ValueKind::Bool => key.is_true().to_string(),
        ValueKind::Number if key.is_integer() => key.to_string(),
        ValueKind::Number => float(f64::try_from(key.clone())?),
        _ => return Err(fail("tojson: keys must be str, int, float, bool or None")),
    })
}
