//! The functions and operators of expressions: a closed list, all of them pure.

use std::{cmp::Ordering, rc::Rc};

use super::{
    evaluate::{Budget, Evaluated, Fault, equal, failed},
    term::Function,
    value::{self, Value},
};
use crate::recipe::{exact::is_number, limits::MAX_QUOTED};

/// The largest compiled pattern.
const MAX_PATTERN_BYTES: usize = 1 << 20;

/// Calls one.
pub(super) fn call(function: Function, arguments: &[Value], budget: &mut Budget) -> Evaluated {
    match (function, arguments) {
        (Function::Equal, [one, other]) => Ok(Value::Bool(equal(one, other, budget)?)),
        (Function::Unequal, [one, other]) => Ok(Value::Bool(!equal(one, other, budget)?)),
        (Function::Size, [of]) => size(of, budget),
        // Passing a big number on is no computing; everything else is.
        (_, arguments) if arguments.iter().any(|argument| matches!(argument, Value::Big(_))) => {
            let big = arguments.iter().find_map(|argument| match argument {
                Value::Big(text) => Some(text),
                _ => None,
            });
            too_big(big.expect("found above"))
        }
        (Function::In, [one, of]) => within(one, of, budget),
        (Function::Not, [Value::Bool(value)]) => Ok(Value::Bool(!value)),
        (Function::Negate, [Value::Int(value)]) => whole(value.checked_neg()),
        (Function::Negate, [Value::Double(value)]) => finite(-value),
        (Function::Add, [Value::Text(one), Value::Text(other)]) => {
            budget.spend((one.len() + other.len()) / 8)?;
            Ok(Value::Text(format!("{one}{other}").into()))
        }
        (Function::Add, [Value::List(one), Value::List(other)]) => {
            budget.spend(one.len() + other.len())?;
            Ok(Value::List(Rc::new(one.iter().chain(other.iter()).cloned().collect())))
        }
        (
            Function::Add | Function::Subtract | Function::Multiply | Function::Divide | Function::Remainder,
            [Value::Int(one), Value::Int(other)],
        ) => integers(function, *one, *other),
        (
            Function::Add | Function::Subtract | Function::Multiply | Function::Divide,
            [Value::Double(one), Value::Double(other)],
        ) => finite(match function {
            Function::Add => one + other,
            Function::Subtract => one - other,
            Function::Multiply => one * other,
            _ => one / other,
        }),
        (Function::Less | Function::AtMost | Function::Greater | Function::AtLeast, [one, other]) => {
            let Some(order) = order(one, other) else { return no_overload(function, arguments) };
            Ok(Value::Bool(match function {
                Function::Less => order.is_lt(),
                Function::AtMost => order.is_le(),
                Function::Greater => order.is_gt(),
                _ => order.is_ge(),
            }))
        }
        (Function::Contains, [Value::Text(text), Value::Text(part)]) => {
            budget.spend(text.len() / 8)?;
            Ok(Value::Bool(text.contains(part.as_ref())))
        }
        (Function::StartsWith, [Value::Text(text), Value::Text(part)]) => {
            Ok(Value::Bool(text.starts_with(part.as_ref())))
        }
        (Function::EndsWith, [Value::Text(text), Value::Text(part)]) => {
            Ok(Value::Bool(text.ends_with(part.as_ref())))
        }
        (Function::Matches, [Value::Text(text), Value::Text(pattern)]) => matches(text, pattern, budget),
        (Function::Int, [of]) => int(of),
        (Function::Double, [of]) => double(of),
        (Function::String, [of]) => string(of),
        (Function::Bool, [Value::Bool(value)]) => Ok(Value::Bool(*value)),
        (Function::Bool, [Value::Text(text)]) if matches!(text.as_ref(), "true" | "false") => {
            Ok(Value::Bool(text.as_ref() == "true"))
        }
        _ => no_overload(function, arguments),
    }
}

/// The answer to computing with a number that no type holds.
pub(super) fn too_big<T>(text: &str) -> Result<T, Fault> {
    let shown: String = text.chars().take(MAX_QUOTED / 2).collect();
    failed(format!(
        "neither a 64-bit integer nor a double holds {shown} exactly; it can be passed on, not computed with"
    ))
}

fn no_overload(function: Function, arguments: &[Value]) -> Evaluated {
    let kinds: Vec<&str> = arguments.iter().map(Value::kind).collect();
    let hint = match kinds.as_slice() {
        ["int", "double"] | ["double", "int"] => "; convert one with double() or int()",
        _ => "",
    };
    failed(format!("`{}` does not apply to {}{hint}", function.name(), kinds.join(" and ")))
}

fn whole(value: Option<i64>) -> Evaluated {
    value.map_or_else(|| failed("the result is no 64-bit integer"), |value| Ok(Value::Int(value)))
}

fn finite(value: f64) -> Evaluated {
    if value.is_finite() { Ok(Value::Double(value)) } else { failed("the result is no finite number") }
}

fn integers(function: Function, one: i64, other: i64) -> Evaluated {
    if other == 0 && matches!(function, Function::Divide | Function::Remainder) {
        return failed("division by zero");
    }
    whole(match function {
        Function::Add => one.checked_add(other),
        Function::Subtract => one.checked_sub(other),
        Function::Multiply => one.checked_mul(other),
        Function::Divide => one.checked_div(other),
        _ => one.checked_rem(other),
    })
}

fn order(one: &Value, other: &Value) -> Option<Ordering> {
    match (one, other) {
        (Value::Int(one), Value::Int(other)) => Some(one.cmp(other)),
        (Value::Double(one), Value::Double(other)) => one.partial_cmp(other),
        (Value::Int(int), Value::Double(double)) => Some(value::int_to_double(*int, *double)),
        (Value::Double(double), Value::Int(int)) => Some(value::int_to_double(*int, *double).reverse()),
        (Value::Text(one), Value::Text(other)) => Some(one.cmp(other)),
        (Value::Bool(one), Value::Bool(other)) => Some(one.cmp(other)),
        _ => None,
    }
}

fn within(one: &Value, of: &Value, budget: &mut Budget) -> Evaluated {
    match of {
        Value::List(elements) => {
            for element in elements.iter() {
                if equal(one, element, budget)? {
                    return Ok(Value::Bool(true));
                }
            }
            Ok(Value::Bool(false))
        }
        Value::Map(members) => match one {
            Value::Text(key) => Ok(Value::Bool(members.contains_key(key))),
            _ => Ok(Value::Bool(false)),
        },
        other => failed(format!("`in` asks a list or a map, not a {}", other.kind())),
    }
}

fn size(of: &Value, budget: &mut Budget) -> Evaluated {
    let size = match of {
        Value::Text(text) => {
            budget.spend(text.len() / 16)?;
            text.chars().count()
        }
        Value::List(elements) => elements.len(),
        Value::Map(members) => members.len(),
        other => return failed(format!("`size` asks a string, a list or a map, not a {}", other.kind())),
    };
    whole(i64::try_from(size).ok())
}

/// The crate `regex` takes time linear in the text; the size of the compiled pattern is bounded.
fn matches(text: &str, pattern: &str, budget: &mut Budget) -> Evaluated {
    budget.spend(1000 + text.len() + pattern.len() * 16)?;
    match regex::RegexBuilder::new(pattern).size_limit(MAX_PATTERN_BYTES).build() {
        Ok(compiled) => Ok(Value::Bool(compiled.is_match(text))),
        Err(_) => failed("the pattern of `matches` is no regular expression, or too large"),
    }
}

fn int(of: &Value) -> Evaluated {
    whole(match of {
        Value::Int(value) => Some(*value),
        Value::Double(double) => value::truncated(*double),
        Value::Text(text) if !text.starts_with('+') => text.parse().ok(),
        other => return no_overload(Function::Int, std::slice::from_ref(other)),
    })
}

fn double(of: &Value) -> Evaluated {
    let found = match of {
        Value::Double(value) => Some(*value),
        Value::Int(int) => value::exact_double(*int),
        Value::Text(text) if is_number(text) => match value::number(text) {
            Value::Double(value) => Some(value),
            Value::Int(int) => value::exact_double(int),
            _ => None,
        },
        other => return no_overload(Function::Double, std::slice::from_ref(other)),
    };
    found.map_or_else(|| failed("no double holds it exactly"), |value| Ok(Value::Double(value)))
}

fn string(of: &Value) -> Evaluated {
    Ok(Value::Text(match of {
        Value::Text(text) => Rc::clone(text),
        Value::Int(value) => value.to_string().into(),
        Value::Double(double) => value::double_text(*double).into(),
        Value::Bool(value) => value.to_string().into(),
        other => return no_overload(Function::String, std::slice::from_ref(other)),
    }))
}
