//! Python's two ways to format: '%s' % value and '{}'.format(value).

use minijinja::value::ValueKind;
use minijinja::{Error, Value};

use super::budget;
use super::operators::{number, Number};
use super::python::{fail, repr, text};

/// Width, precision and flags of one field.
#[derive(Default)]
struct Spec {
    fill: Option<char>,
    align: Option<char>,
    sign: Option<char>,
    alternate: bool,
    comma: Option<char>,
    width: usize,
    precision: Option<usize>,
    kind: Option<char>,
}

const MAX_WIDTH: usize = 100_000;

fn read_number(chars: &mut std::iter::Peekable<std::str::Chars>) -> Result<Option<usize>, Error> {
    let mut value = None;
    while let Some(digit) = chars.peek().and_then(|c| c.to_digit(10)) {
        chars.next();
        value = Some(value.unwrap_or(0usize) * 10 + digit as usize);
        if value > Some(MAX_WIDTH) {
            return Err(fail("format: width or precision is too large"));
        }
    }
    Ok(value)
}

/// format % values.
pub fn percent(format: &str, values: &Value) -> Result<Value, Error> {
    let list = matches!(values.kind(), ValueKind::Seq | ValueKind::Iterable);
    let mut rest: Vec<Value> = if list { values.try_iter()?.collect() } else { vec![values.clone()] };
    rest.reverse();
    let mut out = String::new();
    let mut chars = format.chars().peekable();
    let mut named = false;
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        let mut name = None;
        if chars.peek() == Some(&'(') {
            chars.next();
            name = Some(chars.by_ref().take_while(|c| *c != ')').collect::<String>());
            named = true;
        }
        let mut spec = Spec { align: Some('>'), ..Spec::default() };
        while let Some(flag) = chars.next_if(|c| "-+ 0#".contains(*c)) {
            match flag {
                '-' => spec.align = Some('<'),
                '0' => spec.fill = Some('0'),
                '#' => spec.alternate = true,
                sign => spec.sign = Some(sign),
            }
        }
        spec.width = read_number(&mut chars)?.unwrap_or(0);
        if chars.next_if_eq(&'.').is_some() {
            spec.precision = Some(read_number(&mut chars)?.unwrap_or(0));
        }
        let kind = chars.next().ok_or_else(|| fail("incomplete format"))?;
        if kind == '%' {
            out.push('%');
            continue;
        }
        let value = match name {
            Some(name) => values.get_attr(&name)?,
            None => rest.pop().ok_or_else(|| fail("not enough arguments for format string"))?,
        };
        let zero = spec.fill == Some('0') && spec.align == Some('>') && !"sr".contains(kind);
        spec.fill = if zero { Some('0') } else { None };
        spec.align = if zero { Some('=') } else { spec.align };
        let plain = match kind {
            's' => cut(text(&value)?, spec.precision),
            'r' | 'a' => cut(repr(&value)?, spec.precision),
            'c' => text(&value)?,
            'd' | 'i' | 'u' => {
                let n = number(&value).ok_or_else(|| fail("%d format: a real number is required"))?;
                signed(
                    &spec,
                    match n {
                        Number::Int(n) => n,
                        Number::Float(x) => x.trunc() as i128,
                    }
                    .to_string(),
                )
            }
            'x' | 'X' | 'o' | 'f' | 'F' | 'e' | 'E' | 'g' | 'G' => {
                spec.kind = Some(kind);
                numeric(&spec, number(&value).ok_or_else(|| fail("must be real number"))?)?
            }
            other => return Err(fail(format!("unsupported format character '{other}'"))),
        };
        out.push_str(&pad(&spec, plain));
        budget::fits(out.len())?;
    }
    if !rest.is_empty() && !named && values.kind() != ValueKind::Map {
        return Err(fail("not all arguments converted during string formatting"));
    }
    budget::text(out)
}

/// format.format(*values, **names).
pub fn braces(format: &str, values: &[Value], names: Option<&Value>) -> Result<Value, Error> {
    let mut out = String::new();
    let mut chars = format.chars().peekable();
    let mut next = 0;
    while let Some(c) = chars.next() {
        match c {
            '{' if chars.next_if_eq(&'{').is_none() => {
                let field: String = chars.by_ref().take_while(|c| *c != '}').collect();
                let (path, spec) = field.split_once(':').unwrap_or((&field, ""));
                let (path, conversion) = path.split_once('!').unwrap_or((path, ""));
                let value = lookup(path, values, names, &mut next)?;
                let value = if conversion == "r" { Value::from(repr(&value)?) } else { value };
                out.push_str(&formatted(&value, spec)?);
            }
            '}' if chars.next_if_eq(&'}').is_none() => {
                return Err(fail("Single '}' encountered in format string"))
            }
            c => out.push(c),
        }
        budget::fits(out.len())?;
    }
    budget::text(out)
}

fn lookup(path: &str, values: &[Value], names: Option<&Value>, next: &mut usize) -> Result<Value, Error> {
    let mut parts = path.split(['.', '[']);
    let first = parts.next().unwrap_or_default();
    let mut value = if first.is_empty() {
        *next += 1;
        values.get(*next - 1).cloned()
    } else if let Ok(index) = first.parse::<usize>() {
        values.get(index).cloned()
    } else {
        names.and_then(|names| names.get_attr(first).ok()).filter(|v| !v.is_undefined())
    }
    .ok_or_else(|| fail(format!("format: no argument for {{{path}}}")))?;
    for part in parts {
        let part = part.trim_end_matches(']');
        value = match part.parse::<usize>() {
            Ok(index) => value.get_item_by_index(index)?,
            Err(_) => value.get_attr(part)?,
        };
    }
    Ok(value)
}

/// format(value, spec).
fn formatted(value: &Value, spec_text: &str) -> Result<String, Error> {
    let mut spec = Spec::default();
    let letters: Vec<char> = spec_text.chars().collect();
    let mut rest = spec_text;
    let is_align = |c: Option<&char>| c.is_some_and(|c| "<>=^".contains(*c));
    if is_align(letters.get(1)) {
        (spec.fill, spec.align) = (Some(letters[0]), Some(letters[1]));
        rest = &spec_text[letters[0].len_utf8() + 1..];
    } else if is_align(letters.first()) {
        spec.align = Some(letters[0]);
        rest = &spec_text[1..];
    }
    let mut chars = rest.chars().peekable();
    spec.sign = chars.next_if(|c| "+- ".contains(*c)).filter(|c| *c != '-');
    spec.alternate = chars.next_if_eq(&'#').is_some();
    if chars.peek() == Some(&'0') && spec.align.is_none() {
        (spec.fill, spec.align) = (Some('0'), Some('='));
    }
    spec.width = read_number(&mut chars)?.unwrap_or(0);
    spec.comma = chars.next_if(|c| ",_".contains(*c));
    if chars.next_if_eq(&'.').is_some() {
        spec.precision = read_number(&mut chars)?;
    }
    spec.kind = chars.next();
    if chars.next().is_some() {
        return Err(fail(format!("invalid format specifier '{spec_text}'")));
    }
    let plain = match number(value) {
        _ if spec.kind == Some('s') || value.kind() == ValueKind::Bool && spec.kind.is_none() => {
            cut(text(value)?, spec.precision)
        }
        Some(n) => numeric(&spec, n)?,
        None => cut(text(value)?, spec.precision),
    };
    spec.align = spec.align.or(Some(if number(value).is_some() { '>' } else { '<' }));
    Ok(pad(&spec, plain))
}

fn cut(text: String, precision: Option<usize>) -> String {
    precision.map_or(text.clone(), |n| text.chars().take(n).collect())
}

fn signed(spec: &Spec, digits: String) -> String {
    match (spec.sign, digits.starts_with('-')) {
        (Some(sign), false) => format!("{sign}{digits}"),
        _ => digits,
    }
}

fn numeric(spec: &Spec, value: Number) -> Result<String, Error> {
    let precision = spec.precision.unwrap_or(6);
    let digits = match (spec.kind, value) {
        (None | Some('d'), Number::Int(n)) => n.to_string(),
        (None, Number::Float(x)) if spec.precision.is_none() => super::python::float_text(x),
        (Some('x'), Number::Int(n)) => based(n, spec.alternate, "0x", |n| format!("{n:x}")),
        (Some('X'), Number::Int(n)) => based(n, spec.alternate, "0X", |n| format!("{n:X}")),
        (Some('o'), Number::Int(n)) => based(n, spec.alternate, "0o", |n| format!("{n:o}")),
        (Some('b'), Number::Int(n)) => based(n, spec.alternate, "0b", |n| format!("{n:b}")),
        (Some('f' | 'F'), n) => format!("{:.precision$}", n.float()),
        (Some('%'), n) => format!("{:.precision$}%", n.float() * 100.0),
        (Some('e' | 'E'), n) => scientific(n.float(), precision, spec.kind == Some('E')),
        (None | Some('g' | 'G'), n) => general(n.float(), precision.max(1)),
        _ => return Err(fail("unknown format code for this number")),
    };
    let digits = match spec.comma {
        Some(mark) => grouped(&digits, mark),
        None => digits,
    };
    Ok(signed(spec, digits))
}

fn based(n: i128, prefix: bool, mark: &str, digits: impl Fn(u128) -> String) -> String {
    format!("{}{}{}", if n < 0 { "-" } else { "" }, if prefix { mark } else { "" }, digits(n.unsigned_abs()))
}

fn scientific(x: f64, precision: usize, upper: bool) -> String {
    let text = format!("{x:.precision$e}");
    let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    format!(
        "{digits}{}{}{:02}",
        if upper { 'E' } else { 'e' },
        if exponent < 0 { '-' } else { '+' },
        exponent.abs()
    )
}

/// %g: `precision` significant digits, without trailing zeros.
fn general(x: f64, precision: usize) -> String {
    let text = format!("{x:.*e}", precision - 1);
    let exponent: i32 = text.split_once('e').and_then(|(_, e)| e.parse().ok()).unwrap_or(0);
    let trim = |s: &str| {
        if s.contains('.') {
            s.trim_end_matches('0').trim_end_matches('.').to_owned()
        } else {
            s.to_owned()
        }
    };
    if (-4..precision as i32).contains(&exponent) {
        return trim(&format!("{x:.*}", (precision as i32 - 1 - exponent).max(0) as usize));
    }
    let text = scientific(x, precision - 1, false);
    let (digits, exponent) = text.split_once('e').unwrap_or((&text, "+00"));
    format!("{}e{exponent}", trim(digits))
}

fn grouped(digits: &str, mark: char) -> String {
    let (sign, rest) = digits.strip_prefix('-').map_or(("", digits), |rest| ("-", rest));
    let whole = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    let mut out = sign.to_owned();
    for (i, c) in rest[..whole].chars().enumerate() {
        if i > 0 && (whole - i) % 3 == 0 {
            out.push(mark);
        }
        out.push(c);
    }
    out + &rest[whole..]
}

fn pad(spec: &Spec, text: String) -> String {
    let missing = spec.width.saturating_sub(text.chars().count());
    let fill = |n: usize| spec.fill.unwrap_or(' ').to_string().repeat(n);
    match spec.align {
        Some('>') => fill(missing) + &text,
        Some('^') => fill(missing / 2) + &text + &fill(missing - missing / 2),
        Some('=') => {
            let sign = text.len() - text.trim_start_matches(['-', '+', ' ']).len();
            format!("{}{}{}", &text[..sign], fill(missing), &text[sign..])
        }
        _ => text + &fill(missing),
    }
}
