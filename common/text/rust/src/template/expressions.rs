//! Expressions of a template printed again: operators that differ from Python's become calls of operators.rs.

use minijinja::machinery::ast::{BinOpKind, Call, CallArg, CompareOpKind, Expr, UnaryOpKind};
use minijinja::value::ValueKind;
use minijinja::Value;

use super::python::float_text;
use super::rewrite::Printer;

impl Printer<'_> {
    pub(super) fn filter_chain(&mut self, filter: &Expr) {
        if let Expr::Filter(f) = filter {
            if let Some(inner) = &f.expr {
                self.filter_chain(inner);
                self.put(" | ");
            }
            self.put(f.name);
            self.arguments(&f.args);
        }
    }

    pub(super) fn arguments(&mut self, args: &[CallArg]) {
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

    pub(super) fn helper(&mut self, name: &str, args: &[&Expr]) {
        self.put(name);
        self.list(args.iter().copied(), "(", ")");
    }

    pub(super) fn list<'a, 'b: 'a>(
        &mut self,
        items: impl Iterator<Item = &'a Expr<'b>>,
        open: &str,
        close: &str,
    ) {
        self.put(open);
        for (i, item) in items.enumerate() {
            self.put(if i > 0 { ", " } else { "" });
            self.expr(item);
        }
        self.put(close);
    }

    pub(super) fn call(&mut self, call: &Call) {
        self.expr(&call.expr);
        self.arguments(&call.args);
    }

    pub(super) fn infix(&mut self, left: &Expr, operator: &str, right: &Expr) {
        self.put("(");
        self.expr(left);
        self.put(operator);
        self.expr(right);
        self.put(")");
    }

    pub(super) fn expr(&mut self, expr: &Expr) {
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
    pub(super) fn chain(&mut self, op: BinOpKind, open: &str, between: &str, left: &Expr, right: &Expr) {
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

    pub(super) fn binary(&mut self, op: BinOpKind, left: &Expr, right: &Expr) {
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

    pub(super) fn comparison(&mut self, left: &Expr, op: CompareOpKind, right: &Expr) {
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

    pub(super) fn constant(&mut self, value: &Value) {
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

    pub(super) fn string(&mut self, text: &str) {
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
