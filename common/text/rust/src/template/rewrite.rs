//! Templates rewritten so that minijinja runs them as Jinja2 would.
//!
//! minijinja's parser reads the template; the syntax tree is printed again with the operators that differ from Python's
//! as calls of our own functions (operators.rs), and text as string constants, its white space settled. Tags keep their
//! lines, so that errors name the right one.

use minijinja::machinery::ast::{BinOpKind, Call, CallArg, CompareOpKind, Expr, Macro, Stmt, UnaryOpKind};
use minijinja::machinery::{parse, tokenize, Span, Token, WhitespaceConfig};
use minijinja::value::ValueKind;
use minijinja::{Error, ErrorKind, Value};

use super::python::float_text;

/// Tokens in one tag; bounds how deep an expression nests.
const MAX_TAG_TOKENS: usize = 20_000;

const SPACE: WhitespaceConfig =
    WhitespaceConfig { keep_trailing_newline: false, lstrip_blocks: true, trim_blocks: true };

pub fn rewrite(source: &str) -> Result<String, Error> {
    check_tags(source)?;
    let tree = parse(source, "chat template", Default::default(), SPACE)?;
    let mut printer = Printer { source, out: String::with_capacity(source.len() * 2), line: 1 };
    printer.stmt(&tree);
    Ok(printer.out)
}

fn check_tags(source: &str) -> Result<(), Error> {
    let mut tokens = 0;
    // A lexer's error comes back from the parser, with its line.
    for (token, _) in tokenize(source, false, Default::default(), SPACE).map_while(Result::ok) {
        tokens = if matches!(token, Token::VariableStart | Token::BlockStart) { 0 } else { tokens + 1 };
        if tokens > MAX_TAG_TOKENS {
            return Err(Error::new(
                ErrorKind::SyntaxError,
                format!("a tag has more than {MAX_TAG_TOKENS} tokens"),
            ));
        }
    }
    Ok(())
}

struct Printer<'s> {
    source: &'s str,
    out: String,
    line: u16,
}

impl Printer<'_> {
    fn put(&mut self, text: &str) {
        self.out.push_str(text);
    }

    fn open(&mut self, mark: &str, span: Span) {
        self.put(mark);
        while self.line < span.start_line {
            self.out.push('\n');
            self.line += 1;
        }
        self.out.push(' ');
    }

    fn body(&mut self, body: &[Stmt]) {
        body.iter().for_each(|stmt| self.stmt(stmt));
    }

    fn stmt(&mut self, stmt: &Stmt) {
        match stmt {
            Stmt::Template(t) => self.body(&t.children),
            Stmt::EmitExpr(e) => {
                self.open("{{", e.span());
                self.expr(&e.expr);
                self.put(" }}");
            }
            Stmt::EmitRaw(raw) => {
                self.put("{{ ");
                self.string(raw.raw);
                self.put(" }}");
            }
            Stmt::ForLoop(f) => {
                self.open("{% for", f.span());
                self.target(&f.target);
                self.put(" in ");
                self.helper("__iter", &[&f.iter]);
                if let Some(filter) = &f.filter_expr {
                    self.put(" if ");
                    self.expr(filter);
                }
                self.put(if f.recursive { " recursive %}" } else { " %}" });
                self.body(&f.body);
                if !f.else_body.is_empty() {
                    self.put("{% else %}");
                    self.body(&f.else_body);
                }
                self.put("{% endfor %}");
            }
            Stmt::IfCond(first) => {
                let (mut node, mut mark) = (first, "{% if");
                loop {
                    self.open(mark, node.expr.span());
                    self.expr(&node.expr);
                    self.put(" %}");
                    self.body(&node.true_body);
                    match &node.false_body[..] {
                        [] => break,
                        [Stmt::IfCond(next)] => (node, mark) = (next, "{% elif"),
                        rest => {
                            self.put("{% else %}");
                            self.body(rest);
                            break;
                        }
                    }
                }
                self.put("{% endif %}");
            }
            Stmt::WithBlock(w) => {
                self.open("{% with", w.span());
                for (i, (target, value)) in w.assignments.iter().enumerate() {
                    self.put(if i > 0 { ", " } else { "" });
                    self.target(target);
                    self.put(" = ");
                    self.expr(value);
                }
                self.put(" %}");
                self.body(&w.body);
                self.put("{% endwith %}");
            }
            Stmt::Set(s) => {
                self.mention(&s.target);
                self.open("{% set", s.span());
                self.target_list(&s.target);
                self.put(" = ");
                match s.target {
                    Expr::GetAttr(_) => self.helper("__storable", &[&s.expr]),
                    _ => self.expr(&s.expr),
                }
                self.put(" %}");
            }
            Stmt::SetBlock(s) => {
                self.mention(&s.target);
                self.open("{% set", s.span());
                self.target_list(&s.target);
                if let Some(filter) = &s.filter {
                    self.put(" | ");
                    self.filter_chain(filter);
                }
                self.put(" %}");
                self.body(&s.body);
                self.put("{% endset %}");
            }
            Stmt::AutoEscape(a) => self.body(&a.body),
            Stmt::FilterBlock(f) => {
                self.open("{% filter", f.span());
                self.filter_chain(&f.filter);
                self.put(" %}");
                self.body(&f.body);
                self.put("{% endfilter %}");
            }
            Stmt::Block(b) => {
                self.open("{% block", b.span());
                self.put(b.name);
                self.put(" %}");
                self.body(&b.body);
                self.put("{% endblock %}");
            }
            Stmt::Import(s) => self.no_loader(s.span()),
            Stmt::FromImport(s) => self.no_loader(s.span()),
            Stmt::Extends(s) => self.no_loader(s.span()),
            Stmt::Include(s) => self.no_loader(s.span()),
            Stmt::Macro(m) => {
                self.open("{% macro", m.span());
                self.put(m.name);
                self.parameters(m);
                self.put(" %}");
                self.body(&m.body);
                self.put("{% endmacro %}");
            }
            Stmt::CallBlock(c) => {
                self.open("{% call", c.span());
                if !c.macro_decl.args.is_empty() {
                    self.parameters(&c.macro_decl);
                    self.put(" ");
                }
                self.call(&c.call);
                self.put(" %}");
                self.body(&c.macro_decl.body);
                self.put("{% endcall %}");
            }
            Stmt::Continue(_) => self.put("{% continue %}"),
            Stmt::Break(_) => self.put("{% break %}"),
            Stmt::Do(d) => {
                self.open("{% do", d.span());
                self.call(&d.call);
                self.put(" %}");
            }
        }
    }

    /// Reads the namespace that is assigned to: bodies of macros and call blocks capture only what they read.
    fn mention(&mut self, target: &Expr) {
        match target {
            Expr::GetAttr(a) => match &a.expr {
                Expr::Var(v) => self.put(&format!("{{% if {} %}}{{% endif %}}", v.id)),
                inner => self.mention(inner),
            },
            Expr::List(list) => list.items.iter().for_each(|item| self.mention(item)),
            _ => {}
        }
    }

    fn no_loader(&mut self, span: Span) {
        self.open("{{", span);
        self.put("raise_exception(\"no loader for this environment specified\") }}");
    }

    fn parameters(&mut self, m: &Macro) {
        self.put("(");
        let plain = m.args.len() - m.defaults.len().min(m.args.len());
        for (i, arg) in m.args.iter().enumerate() {
            self.put(if i > 0 { ", " } else { "" });
            self.target(arg);
            if i >= plain {
                self.put("=");
                self.expr(&m.defaults[i - plain]);
            }
        }
        self.put(")");
    }

    fn target_list(&mut self, target: &Expr) {
        match target {
            Expr::List(list) if list.items.len() > 1 => {
                for (i, item) in list.items.iter().enumerate() {
                    self.put(if i > 0 { ", " } else { "" });
                    self.target(item);
                }
            }
            other => self.target(other),
        }
    }

    /// What is assigned to: a name, an attribute of a namespace, or a tuple of them.
    fn target(&mut self, target: &Expr) {
        match target {
            Expr::Var(v) => self.put(v.id),
            Expr::GetAttr(a) => {
                self.target(&a.expr);
                self.put(".");
                self.put(a.name);
            }
            Expr::List(list) => {
                self.put("(");
                for item in &list.items {
                    self.target(item);
                    self.put(",");
                }
                self.put(")");
            }
            _ => {}
        }
    }

    fn filter_chain(&mut self, filter: &Expr) {
        if let Expr::Filter(f) = filter {
            if let Some(inner) = &f.expr {
                self.filter_chain(inner);
                self.put(" | ");
            }
            self.put(f.name);
            self.arguments(&f.args);
        }
    }

    fn arguments(&mut self, args: &[CallArg]) {
        self.put("(");
        for (i, arg) in args.iter().enumerate() {
            self.put(if i > 0 { ", " } else { "" });
            match arg {
                CallArg::Pos(e) => self.expr(e),
                CallArg::Kwarg(name, e) => {
                    self.put(name);
                    self.put("=");
                    self.expr(e);
                }
                CallArg::PosSplat(e) => {
                    self.put("*");
                    self.expr(e);
                }
                CallArg::KwargSplat(e) => {
                    self.put("**");
                    self.expr(e);
                }
            }
        }
        self.put(")");
    }

    fn helper(&mut self, name: &str, args: &[&Expr]) {
        self.put(name);
        self.list(args.iter().copied(), "(", ")");
    }

    fn list<'a, 'b: 'a>(&mut self, items: impl Iterator<Item = &'a Expr<'b>>, open: &str, close: &str) {
        self.put(open);
        for (i, item) in items.enumerate() {
            self.put(if i > 0 { ", " } else { "" });
            self.expr(item);
        }
        self.put(close);
    }

    fn call(&mut self, call: &Call) {
        self.expr(&call.expr);
        self.arguments(&call.args);
    }

    fn infix(&mut self, left: &Expr, operator: &str, right: &Expr) {
        self.put("(");
        self.expr(left);
        self.put(operator);
        self.expr(right);
        self.put(")");
    }

    fn expr(&mut self, expr: &Expr) {
        match expr {
            Expr::Var(v) => self.put(v.id),
            Expr::Const(c) => self.constant(&c.value),
            Expr::Slice(s) => {
                self.put("__slice(");
                self.expr(&s.expr);
                for bound in [&s.start, &s.stop, &s.step] {
                    self.put(", ");
                    match bound {
                        Some(bound) => self.expr(bound),
                        None => self.put("none"),
                    }
                }
                self.put(")");
            }
            Expr::UnaryOp(u) => match u.op {
                UnaryOpKind::Not => {
                    self.put("(not ");
                    self.expr(&u.expr);
                    self.put(")");
                }
                UnaryOpKind::Neg => self.helper("__neg", &[&u.expr]),
            },
            Expr::BinOp(b) => self.binary(b.op, &b.left, &b.right),
            Expr::Compare(c) => match &c.ops[..] {
                [only] => self.comparison(&c.expr, only.op, &only.expr),
                ops => {
                    self.put("(");
                    self.expr(&c.expr);
                    for op in ops {
                        self.put(comparison_sign(op.op));
                        self.expr(&op.expr);
                    }
                    self.put(")");
                }
            },
            Expr::IfExpr(i) => {
                self.put("(");
                self.expr(&i.true_expr);
                self.put(" if ");
                self.expr(&i.test_expr);
                if let Some(other) = &i.false_expr {
                    self.put(" else ");
                    self.expr(other);
                }
                self.put(")");
            }
            Expr::Filter(f) => {
                self.put("(");
                if let Some(inner) = &f.expr {
                    self.expr(inner);
                    self.put(" | ");
                }
                self.put(f.name);
                self.arguments(&f.args);
                self.put(")");
            }
            Expr::Test(t) => {
                self.put("(");
                self.expr(&t.expr);
                self.put(" is ");
                self.put(t.name);
                self.arguments(&t.args);
                self.put(")");
            }
            Expr::GetAttr(a) => {
                self.expr(&a.expr);
                self.put(".");
                self.put(a.name);
            }
            Expr::GetItem(i) => self.helper("__item", &[&i.expr, &i.subscript_expr]),
            Expr::Call(c) => self.call(c),
            Expr::List(l) => {
                // The parser makes lists of tuples too; the bracket tells.
                let list = self.source[l.span().start_offset as usize..].starts_with('[');
                self.list(l.items.iter(), if list { "__list(" } else { "__tuple(" }, ")");
            }
            Expr::Map(m) => {
                self.put("__dict(");
                self.list(m.keys.iter().zip(&m.values).flat_map(|(k, v)| [k, v]), "", "");
                self.put(")");
            }
        }
    }

    /// a op b op c, which the parser nests to the left, as one list: nesting is limited.
    fn chain(&mut self, op: BinOpKind, open: &str, between: &str, left: &Expr, right: &Expr) {
        let (mut operands, mut first) = (vec![right], left);
        while let Expr::BinOp(b) = first {
            if std::mem::discriminant(&b.op) != std::mem::discriminant(&op) {
                break;
            }
            operands.push(&b.right);
            first = &b.left;
        }
        self.put(open);
        self.expr(first);
        for operand in operands.into_iter().rev() {
            self.put(between);
            self.expr(operand);
        }
        self.put(")");
    }

    fn binary(&mut self, op: BinOpKind, left: &Expr, right: &Expr) {
        let name = match op {
            BinOpKind::Sub => "__sub",
            BinOpKind::Mul => "__mul",
            BinOpKind::Div => "__div",
            BinOpKind::FloorDiv => "__floordiv",
            BinOpKind::Rem => "__mod",
            BinOpKind::Pow => "__pow",
            BinOpKind::In => "__in",
            BinOpKind::Add => return self.chain(op, "__add(", ", ", left, right),
            BinOpKind::Concat => return self.chain(op, "__cat(", ", ", left, right),
            BinOpKind::ScAnd => return self.chain(op, "(", " and ", left, right),
            BinOpKind::ScOr => return self.chain(op, "(", " or ", left, right),
            BinOpKind::Eq => return self.comparison(left, CompareOpKind::Eq, right),
            BinOpKind::Ne => return self.comparison(left, CompareOpKind::Ne, right),
            BinOpKind::Lt => return self.comparison(left, CompareOpKind::Lt, right),
            BinOpKind::Lte => return self.comparison(left, CompareOpKind::Lte, right),
            BinOpKind::Gt => return self.comparison(left, CompareOpKind::Gt, right),
            BinOpKind::Gte => return self.comparison(left, CompareOpKind::Gte, right),
        };
        self.helper(name, &[left, right]);
    }

    fn comparison(&mut self, left: &Expr, op: CompareOpKind, right: &Expr) {
        match op {
            CompareOpKind::In => self.helper("__in", &[left, right]),
            CompareOpKind::NotIn => {
                self.put("(not ");
                self.helper("__in", &[left, right]);
                self.put(")");
            }
            CompareOpKind::Lt => self.helper("__lt", &[left, right]),
            CompareOpKind::Lte => self.helper("__le", &[left, right]),
            CompareOpKind::Gt => self.helper("__gt", &[left, right]),
            CompareOpKind::Gte => self.helper("__ge", &[left, right]),
            CompareOpKind::Eq | CompareOpKind::Ne => self.infix(left, comparison_sign(op), right),
        }
    }

    fn constant(&mut self, value: &Value) {
        match value.kind() {
            ValueKind::None => self.put("none"),
            ValueKind::Bool => self.put(if value.is_true() { "true" } else { "false" }),
            ValueKind::String => self.string(value.as_str().unwrap_or_default()),
            ValueKind::Number if value.is_integer() => self.put(&value.to_string()),
            _ => match f64::try_from(value.clone()) {
                Ok(number) if number.is_finite() => self.put(&float_text(number)),
                _ => self.put("1e999"),
            },
        }
    }

    fn string(&mut self, text: &str) {
        self.out.push('"');
        for c in text.chars() {
            match c {
                '"' => self.put("\\\""),
                '\\' => self.put("\\\\"),
                '\n' => self.put("\\n"),
                '\r' => self.put("\\r"),
                c => self.out.push(c),
            }
        }
        self.out.push('"');
    }
}

fn comparison_sign(op: CompareOpKind) -> &'static str {
    match op {
        CompareOpKind::Eq => " == ",
        CompareOpKind::Ne => " != ",
        CompareOpKind::Lt => " < ",
        CompareOpKind::Lte => " <= ",
        CompareOpKind::Gt => " > ",
        CompareOpKind::Gte => " >= ",
        CompareOpKind::In => " in ",
        CompareOpKind::NotIn => " not in ",
    }
}
