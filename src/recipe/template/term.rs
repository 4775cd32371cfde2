//! An expression as it is evaluated: names resolved, macros unrolled, functions from a closed list. The crate `cel`
//! parses; what it gives is checked here and turned into our own terms, so that evaluation is ours: no function
//! that knows the time, the environment or chance can be reached, and a later version of the crate changes nothing.

use cel::common::ast::{ComprehensionExpr, EntryExpr, Expr, IdedExpr, LiteralValue};

use super::{Names, Reference};

/// A function or operator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Function {
    Add,
    Subtract,
    Multiply,
    Divide,
    Remainder,
    Negate,
    Not,
    Equal,
    Unequal,
    Less,
    AtMost,
    Greater,
    AtLeast,
    In,
    Size,
    Contains,
    StartsWith,
    EndsWith,
    Matches,
    Int,
    Double,
    String,
    Bool,
}

impl Function {
    /// By the parser's name for it, whether it is called on something, and how many arguments there are, that one
    /// counted.
    fn find(name: &str, member: bool, arguments: usize) -> Option<Self> {
        Some(match (name, member, arguments) {
            ("_+_", false, 2) => Self::Add,
            ("_-_", false, 2) => Self::Subtract,
            ("_*_", false, 2) => Self::Multiply,
            ("_/_", false, 2) => Self::Divide,
            ("_%_", false, 2) => Self::Remainder,
            ("-_", false, 1) => Self::Negate,
            ("!_", false, 1) => Self::Not,
            ("_==_", false, 2) => Self::Equal,
            ("_!=_", false, 2) => Self::Unequal,
            ("_<_", false, 2) => Self::Less,
            ("_<=_", false, 2) => Self::AtMost,
            ("_>_", false, 2) => Self::Greater,
            ("_>=_", false, 2) => Self::AtLeast,
            ("@in", false, 2) => Self::In,
            ("size", _, 1) => Self::Size,
            ("contains", true, 2) => Self::Contains,
            ("startsWith", true, 2) => Self::StartsWith,
            ("endsWith", true, 2) => Self::EndsWith,
            ("matches", _, 2) => Self::Matches,
            ("int", false, 1) => Self::Int,
            ("double", false, 1) => Self::Double,
            ("string", false, 1) => Self::String,
            ("bool", false, 1) => Self::Bool,
            _ => return None,
        })
    }

    /// How messages call it.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Add => "+",
            Self::Subtract | Self::Negate => "-",
            Self::Multiply => "*",
            Self::Divide => "/",
            Self::Remainder => "%",
            Self::Not => "!",
            Self::Equal => "==",
            Self::Unequal => "!=",
            Self::Less => "<",
            Self::AtMost => "<=",
            Self::Greater => ">",
            Self::AtLeast => ">=",
            Self::In => "in",
            Self::Size => "size",
            Self::Contains => "contains",
            Self::StartsWith => "startsWith",
            Self::EndsWith => "endsWith",
            Self::Matches => "matches",
            Self::Int => "int",
            Self::Double => "double",
            Self::String => "string",
            Self::Bool => "bool",
        }
    }
}

/// A constant of the expression.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Literal {
    Null,
    Bool(bool),
    Int(i64),
    Double(f64),
    Text(String),
}

/// A part of an expression.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Term {
    Literal(Literal),
    /// The variable of a loop around, by its place from the outside.
    Slot(usize),
    /// Something that a recipe can read, and how the expression calls it.
    Read(Reference, String),
    Select(Box<Term>, String),
    Index(Box<Term>, Box<Term>),
    /// `has(x.y)`
    Has(Box<Term>, String),
    /// `has(…)` of something that can be read as a whole.
    HasRead(Reference),
    Call(Function, Vec<Term>),
    And(Box<Term>, Box<Term>),
    Or(Box<Term>, Box<Term>),
    Choose(Box<(Term, Term, Term)>),
    /// Holds also where the term fails: what ends a loop early.
    NotFalse(Box<Term>),
    List(Vec<Term>),
    Map(Vec<(Term, Term)>),
    Loop(Box<Loop>),
}

/// `map`, `filter`, `all`, `exists`, `exists_one`.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Loop {
    pub(super) range: Term,
    /// Where the accumulator is; the element is behind it.
    pub(super) slot: usize,
    pub(super) start: Term,
    pub(super) condition: Term,
    pub(super) step: Term,
    pub(super) result: Term,
}

impl Term {
    /// How the expression calls what it reads, as far as that can be told.
    pub(super) fn path(&self) -> String {
        match self {
            Self::Read(_, path) => path.clone(),
            Self::Select(inner, field) | Self::Has(inner, field) => join(&inner.path(), field),
            Self::Index(inner, index) => match index.as_ref() {
                Self::Literal(Literal::Text(key)) => join(&inner.path(), key),
                Self::Literal(Literal::Int(index)) => format!("{}[{index}]", inner.path()),
                _ => format!("{}[…]", inner.path()),
            },
            _ => "(…)".to_owned(),
        }
    }
}

/// `path.key`, or `path["key"]` where the key is no name.
pub(super) fn join(path: &str, key: &str) -> String {
    if is_name(key) { format!("{path}.{key}") } else { format!("{path}[{key:?}]") }
}

/// Whether a key can stand behind a point.
pub(super) fn is_name(text: &str) -> bool {
    !text.starts_with(|c: char| c.is_ascii_digit())
        && !text.is_empty()
        && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

/// Parses and checks an expression. Recursive, and so is the parser: call it on a thread with a large stack, and
/// only after [`super::scan::guard`].
pub(super) fn compile(expression: &str, names: &dyn Names) -> Result<Term, String> {
    let parsed = cel::parser::Parser::new().parse(expression).map_err(|errors| {
        // Only the first: the others mostly follow from it.
        errors.errors.first().map_or_else(
            || "cannot be parsed".to_owned(),
            |error| format!("{} (character {})", words(&error.msg), error.pos.1.max(1)),
        )
    })?;
    Compiler { names, slots: Vec::new() }.term(&parsed)
}

/// What the parser says; of a text that it cannot read it shows its own insides.
fn words(said: &str) -> &str {
    if said.starts_with("invalid string literal: ") || said.starts_with("invalid bytes literal: ") {
        "a text in quotes has an escape that is none, is cut off, or is no character"
    } else {
        said
    }
}

struct Compiler<'a> {
    names: &'a dyn Names,
    /// Variables of the loops around, outermost first.
    slots: Vec<String>,
}

impl Compiler<'_> {
    fn term(&mut self, node: &IdedExpr) -> Result<Term, String> {
        if let Some(chain) = self.chain(&node.expr) {
            return self.read(&chain, false);
        }
        match &node.expr {
            Expr::Literal(literal) => self::literal(literal).map(Term::Literal),
            Expr::Ident(name) => match self.slots.iter().rposition(|slot| slot == name) {
                Some(slot) => Ok(Term::Slot(slot)),
                None => Err(format!("unknown name `{name}`")),
            },
            Expr::Select(select) if select.test => {
                if let Some(mut chain) = self.chain(&select.operand.expr) {
                    chain.push(select.field.clone());
                    return self.read(&chain, true);
                }
                Ok(Term::Has(Box::new(self.term(&select.operand)?), select.field.clone()))
            }
            Expr::Select(select) => {
                Ok(Term::Select(Box::new(self.term(&select.operand)?), select.field.clone()))
            }
            Expr::List(list) => {
                Ok(Term::List(list.elements.iter().map(|e| self.term(e)).collect::<Result<_, _>>()?))
            }
            Expr::Map(map) => {
                let mut entries = Vec::with_capacity(map.entries.len());
                for entry in &map.entries {
                    let EntryExpr::MapEntry(entry) = &entry.expr else {
                        return Err("messages are not supported; write a map".to_owned());
                    };
                    entries.push((self.term(&entry.key)?, self.term(&entry.value)?));
                }
                Ok(Term::Map(entries))
            }
            Expr::Call(call) => self.call(call),
            Expr::Comprehension(comprehension) => self.comprehension(comprehension),
            Expr::Struct(_) => Err("messages are not supported; write a map".to_owned()),
            Expr::Unspecified => Err("cannot be parsed".to_owned()),
        }
    }

    /// The words of `a.b["c"]` where `a` is no loop's variable.
    fn chain(&self, expr: &Expr) -> Option<Vec<String>> {
        match expr {
            Expr::Ident(name) if !self.slots.contains(name) && !name.starts_with('@') => {
                Some(vec![name.clone()])
            }
            Expr::Select(select) if !select.test => {
                let mut chain = self.chain(&select.operand.expr)?;
                chain.push(select.field.clone());
                Some(chain)
            }
            Expr::Call(call) if call.func_name == "_[_]" && call.args.len() == 2 => {
                let Expr::Literal(LiteralValue::String(key)) = &call.args[1].expr else { return None };
                let mut chain = self.chain(&call.args[0].expr)?;
                chain.push(key.inner().to_owned());
                Some(chain)
            }
            _ => None,
        }
    }

    fn read(&self, chain: &[String], test: bool) -> Result<Term, String> {
        let words: Vec<&str> = chain.iter().map(String::as_str).collect();
        let (reference, used) = self.names.resolve(&words)?;
        let path = words[1..used].iter().fold(words[0].to_owned(), |path, word| join(&path, word));
        let last = words.len() - 1;
        if test && used == words.len() {
            return Ok(Term::HasRead(reference));
        }
        let mut term = Term::Read(reference, path);
        for (n, word) in words.iter().enumerate().skip(used) {
            let (inner, field) = (Box::new(term), (*word).to_owned());
            term = if test && n == last { Term::Has(inner, field) } else { Term::Select(inner, field) };
        }
        Ok(term)
    }

    fn call(&mut self, call: &cel::common::ast::CallExpr) -> Result<Term, String> {
        let mut arguments = Vec::with_capacity(call.args.len() + 1);
        for argument in call.target.as_deref().into_iter().chain(&call.args) {
            arguments.push(self.term(argument)?);
        }
        let count = arguments.len();
        let mut arguments_left = arguments.into_iter();
        let mut next = || Box::new(arguments_left.next().expect("counted"));
        match (call.func_name.as_str(), count) {
            ("_&&_", 2) => return Ok(Term::And(next(), next())),
            ("_||_", 2) => return Ok(Term::Or(next(), next())),
            ("_?_:_", 3) => return Ok(Term::Choose(Box::new((*next(), *next(), *next())))),
            ("_[_]", 2) => return Ok(Term::Index(next(), next())),
            ("@not_strictly_false", 1) => return Ok(Term::NotFalse(next())),
            ("dyn", 1) if call.target.is_none() => return Ok(*next()),
            _ => {}
        }
        match Function::find(&call.func_name, call.target.is_some(), count) {
            Some(function) => Ok(Term::Call(function, arguments_left.collect())),
            None => Err(format!(
                "there is no function `{}` with {count} argument{}",
                call.func_name,
                if count == 1 { "" } else { "s" }
            )),
        }
    }

    fn comprehension(&mut self, found: &ComprehensionExpr) -> Result<Term, String> {
        if found.iter_var2.is_some() {
            return Err("macros with two variables are not supported".to_owned());
        }
        let range = self.term(&found.iter_range)?;
        let start = self.term(&found.accu_init)?;
        let slot = self.slots.len();
        self.slots.push(found.accu_var.clone());
        self.slots.push(found.iter_var.clone());
        let inside = self.term(&found.loop_cond).and_then(|c| Ok((c, self.term(&found.loop_step)?)));
        self.slots.pop();
        let result = inside.and_then(|inside| Ok((inside, self.term(&found.result)?)));
        self.slots.pop();
        let ((condition, step), result) = result?;
        Ok(Term::Loop(Box::new(Loop { range, slot, start, condition, step, result })))
    }
}

fn literal(found: &LiteralValue) -> Result<Literal, String> {
    Ok(match found {
        LiteralValue::Null => Literal::Null,
        LiteralValue::Boolean(value) => Literal::Bool(*value.inner()),
        LiteralValue::Int(value) => Literal::Int(*value.inner()),
        LiteralValue::Double(value) if value.inner().is_finite() => Literal::Double(*value.inner()),
        LiteralValue::Double(_) => return Err("a number is too large".to_owned()),
        LiteralValue::String(value) => Literal::Text(value.inner().to_owned()),
        LiteralValue::UInt(_) => {
            return Err("unsigned numbers are not supported; leave out the `u`".to_owned());
        }
        LiteralValue::Bytes(_) => return Err("bytes are not supported".to_owned()),
    })
}
