//! What is settled in a template's text before minijinja's parser sees it.

/// Jinja2 reads \r\n and \r as \n; transformers' {% generation %} is a call block; a new line after {% raw %} stays;
/// string literals have Python's escapes.
pub fn prepare(source: &str) -> String {
    let source = source.replace("\r\n", "\n").replace('\r', "\n");
    let mut out = String::with_capacity(source.len());
    let mut rest = source.as_str();
    while let Some(at) = next_mark(rest) {
        out.push_str(&rest[..at]);
        rest = &rest[at..];
        if rest.starts_with("{#") {
            let end = rest.find("#}").map_or(rest.len(), |end| end + 2);
            out.push_str(&rest[..end]);
            rest = &rest[end..];
            continue;
        }
        let tag = &rest[..tag_end(rest)];
        rest = &rest[tag.len()..];
        match word(tag) {
            "raw" => {
                out.push_str(tag);
                if !tag.ends_with("-%}") && rest.starts_with('\n') {
                    out.push('\n');
                }
                let end = end_of_raw(rest);
                out.push_str(&rest[..end]);
                rest = &rest[end..];
            }
            "generation" => out.push_str(&tag.replacen("generation", "call __generation()", 1)),
            "endgeneration" => out.push_str(&tag.replacen("endgeneration", "endcall", 1)),
            _ => literals(&mut out, tag),
        }
    }
    out + rest
}

fn next_mark(text: &str) -> Option<usize> {
    text.as_bytes().windows(2).position(|pair| pair[0] == b'{' && matches!(pair[1], b'{' | b'%' | b'#'))
}

/// The only word of a block tag, else "".
fn word(tag: &str) -> &str {
    let inner = tag.strip_prefix("{%").and_then(|tag| tag.strip_suffix("%}")).unwrap_or("");
    inner.trim_matches(|c: char| c.is_whitespace() || c == '-' || c == '+')
}

/// Where the tag that starts `text` ends: strings and brackets inside may hold its closing mark.
fn tag_end(text: &str) -> usize {
    let close = if text.starts_with("{{") { "}}" } else { "%}" };
    let (mut depth, mut at) = (0usize, 2);
    while let Some(c) = text[at..].chars().next() {
        match c {
            _ if depth == 0 && text[at..].starts_with(close) => return at + 2,
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' => depth = depth.saturating_sub(1),
            '"' | '\'' => {
                at = literal_end(text, at, c);
                continue;
            }
            _ => {}
        }
        at += c.len_utf8();
    }
    text.len()
}

/// Past the string literal that starts at `at` with `quote`.
fn literal_end(text: &str, at: usize, quote: char) -> usize {
    let mut escaped = false;
    for (i, c) in text[at + 1..].char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            c if c == quote => return at + 2 + i,
            _ => {}
        }
    }
    text.len()
}

fn end_of_raw(text: &str) -> usize {
    let mut from = 0;
    while let Some(at) = text[from..].find("{%") {
        let tag = &text[from + at..];
        let end = tag.find("%}").map_or(tag.len(), |end| end + 2);
        if word(&tag[..end]) == "endraw" {
            return from + at + end;
        }
        from += at + 2;
    }
    text.len()
}

/// Copies a tag; escapes in its literals that Python reads otherwise than minijinja are spelled for the latter.
fn literals(out: &mut String, tag: &str) {
    let mut at = 0;
    while let Some(c) = tag[at..].chars().next() {
        if c != '"' && c != '\'' {
            out.push(c);
            at += c.len_utf8();
            continue;
        }
        let end = literal_end(tag, at, c);
        let mut chars = tag[at..end].chars();
        while let Some(c) = chars.next() {
            out.push(c);
            if c != '\\' {
                continue;
            }
            match chars.next() {
                Some('/') => out.push_str("\\/"),
                Some('b') => out.push_str("x08"),
                Some('a') => out.push_str("x07"),
                Some('v') => out.push_str("x0b"),
                Some('\n') => _ = out.pop(),
                Some('U') => {
                    let digits: String = chars.by_ref().take(8).collect();
                    match u32::from_str_radix(&digits, 16).ok().and_then(char::from_u32) {
                        Some(letter) => {
                            out.pop();
                            out.push(letter);
                        }
                        None => out.push_str(&format!("\\U{digits}")),
                    }
                }
                Some(other) => out.push(other),
                None => {}
            }
        }
        at = end;
    }
}
