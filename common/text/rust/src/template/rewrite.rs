//! Templates rewritten so that minijinja runs them as Jinja2 would.
//!
//! minijinja's parser reads the template; the syntax tree is printed again with the operators that differ from Python's
//! as calls of our own functions (operators.rs), and text as string constants, its white space settled. Tags keep their
//! lines, so that errors name the right one.

use minijinja::machinery::ast::{Expr, Macro, Stmt};
use minijinja::machinery::{parse, tokenize, Span, Token, WhitespaceConfig};
use minijinja::{Error, ErrorKind};

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

pub(super) struct Printer<'s> {
    pub(super) source: &'s str,
    pub(super) out: String,
    line: u16,
}

impl Printer<'_> {
    pub(super) fn put(&mut self, text: &str) {
        self.out.push_str(text);
    }

    pub(super) fn open(&mut self, mark: &str, span: Span) {
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
    pub(super) fn mention(&mut self, target: &Expr) {
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

    pub(super) fn parameters(&mut self, m: &Macro) {
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

    pub(super) fn target_list(&mut self, target: &Expr) {
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
    pub(super) fn target(&mut self, target: &Expr) {
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
}
