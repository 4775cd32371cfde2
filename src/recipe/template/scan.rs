//! Finds `${{ … }}` in a text and takes it apart; nothing is evaluated here, and what is put in later is never
//! scanned again.

use crate::recipe::limits::{MAX_EXPRESSION_BYTES, MAX_EXPRESSION_NESTING, MAX_EXPRESSION_OPERATORS};

const OPEN: &str = "${{";
const CLOSE: &str = "}}";
/// Writes [`OPEN`] as text.
const ESCAPED: &str = "$${{";

/// A part of a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Piece<'a> {
    /// As it stands, escapes undone.
    Text(String),
    /// What stands between `${{` and `}}`, trimmed.
    Hole(&'a str),
}

/// Whether a text holds a template or an escape.
pub(crate) fn has_template(text: &str) -> bool {
    text.contains(OPEN)
}

/// Takes a text apart.
pub(super) fn pieces(text: &str) -> Result<Vec<Piece<'_>>, String> {
    let mut pieces = Vec::new();
    let mut plain = String::new();
    let mut rest = text;
    while let Some(at) = rest.find(OPEN) {
        if rest[..at].ends_with('$') {
            plain.push_str(&rest[..at - 1]);
            plain.push_str(OPEN);
            rest = &rest[at - 1 + ESCAPED.len()..];
            continue;
        }
        plain.push_str(&rest[..at]);
        let inside = &rest[at + OPEN.len()..];
        let end = close(inside).ok_or("`${{` without `}}`; write `$${{` where it is meant as text")?;
        if !plain.is_empty() {
            pieces.push(Piece::Text(std::mem::take(&mut plain)));
        }
        pieces.push(Piece::Hole(inside[..end].trim()));
        rest = &inside[end + CLOSE.len()..];
    }
    plain.push_str(rest);
    if !plain.is_empty() || pieces.is_empty() {
        pieces.push(Piece::Text(plain));
    }
    Ok(pieces)
}

/// Where the `}}` that ends an expression begins: not one inside a string, nor the braces of maps inside it.
fn close(text: &str) -> Option<usize> {
    let mut tokens = Tokens { text, at: 0 };
    let mut braces = 0_usize;
    while let Some((begin, token)) = tokens.next() {
        match token {
            Token::Other('{') => braces += 1,
            Token::Other('}') if braces > 0 => braces -= 1,
            Token::Other('}') if text[begin..].starts_with(CLOSE) => return Some(begin),
            Token::Unfinished => return None,
            _ => {}
        }
    }
    None
}

/// Refuses an expression over a limit before any parser sees it: parsers recurse.
pub(super) fn guard(expression: &str) -> Result<(), String> {
    if expression.is_empty() {
        return Err("the template is empty".to_owned());
    }
    if expression.len() > MAX_EXPRESSION_BYTES {
        return Err(format!(
            "the expression is {} bytes long; at most {MAX_EXPRESSION_BYTES} (1 KiB) are allowed",
            expression.len()
        ));
    }
    let mut tokens = Tokens { text: expression, at: 0 };
    let (mut depth, mut operators, mut in_a_row) = (0_usize, 0_usize, 0_usize);
    while let Some((_, token)) = tokens.next() {
        let mut prefix = false;
        match token {
            Token::Other('(' | '[' | '{') => depth += 1,
            Token::Other(')' | ']' | '}') => depth = depth.saturating_sub(1),
            Token::Other('?') => operators += 1,
            Token::Operator(c) => {
                operators += 1;
                prefix = matches!(c, '!' | '-');
            }
            Token::Unfinished => return Err("a string in the expression has no end".to_owned()),
            Token::Comment => return Err("comments are not allowed in an expression".to_owned()),
            _ => {}
        }
        in_a_row = if prefix { in_a_row + 1 } else { 0 };
        if depth + in_a_row > MAX_EXPRESSION_NESTING {
            return Err(format!("the expression is nested more than {MAX_EXPRESSION_NESTING} deep"));
        }
        if operators > MAX_EXPRESSION_OPERATORS {
            return Err(format!("the expression has more than {MAX_EXPRESSION_OPERATORS} operators"));
        }
    }
    Ok(())
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Token {
    /// A whole string literal.
    Text,
    /// A string literal without an end.
    Unfinished,
    /// A name or a number.
    Word,
    /// One operator, however many characters it has; told by its first.
    Operator(char),
    /// `//`
    Comment,
    /// Any other character.
    Other(char),
}

/// The words of an expression, as far as strings, brackets and operators go.
struct Tokens<'a> {
    text: &'a str,
    at: usize,
}

impl Tokens<'_> {
    fn next(&mut self) -> Option<(usize, Token)> {
        let rest = &self.text[self.at..];
        let begin = self.at + (rest.len() - rest.trim_start().len());
        let rest = &self.text[begin..];
        let first = rest.chars().next()?;
        let (length, token) = if let Some((length, ended)) = string(rest) {
            (length, if ended { Token::Text } else { Token::Unfinished })
        } else if first.is_alphanumeric() || first == '_' {
            let length = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
            (length, if &rest[..length] == "in" { Token::Operator('i') } else { Token::Word })
        } else if rest.starts_with("//") {
            (2, Token::Comment)
        } else {
            let two = ["&&", "||", "==", "!=", "<=", ">="].iter().any(|operator| rest.starts_with(operator));
            match first {
                _ if two => (2, Token::Operator('=')),
                '+' | '-' | '*' | '/' | '%' | '<' | '>' | '!' => (1, Token::Operator(first)),
                _ => (first.len_utf8(), Token::Other(first)),
            }
        };
        self.at = begin + length;
        Some((begin, token))
    }
}

/// The length of the string literal at the beginning of `text`, and whether it has an end; none when there is none.
fn string(text: &str) -> Option<(usize, bool)> {
    // At most two marks stand before the quote; to look further would cost the whole text for each word.
    let prefix = text.bytes().take(3).position(|b| matches!(b, b'"' | b'\''))?;
    if !text.bytes().take(prefix).all(|b| matches!(b, b'r' | b'R' | b'b' | b'B')) {
        return None;
    }
    // All of it is ASCII, so these are slices between characters.
    let raw = text[..prefix].contains(['r', 'R']);
    let body = &text[prefix..];
    let single = &body[..1];
    let triple = single.repeat(3);
    let quote = if body.starts_with(&triple) { triple.as_str() } else { single };
    let mut at = quote.len();
    loop {
        let rest = &body[at..];
        if rest.starts_with(quote) {
            return Some((prefix + at + quote.len(), true));
        }
        let mut characters = rest.chars();
        match characters.next() {
            None => return Some((text.len(), false)),
            Some('\\') if !raw => at += 1 + characters.next().map_or(0, char::len_utf8),
            Some(c) => at += c.len_utf8(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(text: &str) -> String {
        pieces(text).map_or_else(
            |refused| format!("ERROR {refused}"),
            |pieces| {
                pieces
                    .iter()
                    .map(|piece| match piece {
                        Piece::Text(text) => format!("[{text}]"),
                        Piece::Hole(text) => format!("<{text}>"),
                    })
                    .collect()
            },
        )
    }

    #[test]
    fn a_text_is_taken_apart() {
        for (text, parts) in [
            ("", "[]"),
            ("a", "[a]"),
            ("${{ a }}", "<a>"),
            ("${{a}}${{ b }}", "<a><b>"),
            ("x ${{ a }} y", "[x ]<a>[ y]"),
            ("$${{ a }}", "[${{ a }}]"),
            ("$$${{ a }}", "[$${{ a }}]"),
            ("x$${{ a }} ${{ b }}", "[x${{ a }} ]<b>"),
            ("${ a } {{ b }} $(c) $$ ${", "[${ a } {{ b }} $(c) $$ ${]"),
            (r#"${{ {"a": {"b": 1}} }}"#, r#"<{"a": {"b": 1}}>"#),
            (r#"${{ "}}" + '}}' }}"#, r#"<"}}" + '}}'>"#),
            (r#"${{ "\"}}" }}"#, r#"<"\"}}">"#),
            (r#"${{ r"\" }}"#, r#"<r"\">"#),
            ("${{ '''a'}}''' }}", "<'''a'}}'''>"),
            ("é${{ 'é' }}é", "[é]<'é'>[é]"),
        ] {
            assert_eq!(shown(text), parts, "{text}");
        }
        for text in ["${{ a", "${{ a }", "${{ 'a }}", "x ${{ {a: 1}}"] {
            assert!(shown(text).starts_with("ERROR"), "{text}: {}", shown(text));
        }
    }

    #[test]
    fn what_would_make_a_parser_recurse_is_refused_before_it() {
        let of = |n: usize, open: &str, close: &str| format!("{}1{}", open.repeat(n), close.repeat(n));
        for good in [
            of(16, "(", ")"),
            of(16, "!", ""),
            of(5, "!(-", ")"),
            "1".to_owned() + &" + 1".repeat(64),
            "\"((((((((((((((((((((((((\" + '+++'".to_owned(),
            "a.in_b + binary + b'x'".to_owned(),
        ] {
            guard(&good).unwrap_or_else(|e| panic!("{good}: {e}"));
        }
        for bad in [
            of(17, "(", ")"),
            of(10_000, "(", ")"),
            of(500, "[", "]"),
            of(17, "!", ""),
            of(17, "-", ""),
            of(16, "(-", ")"),
            "1".to_owned() + &" + 1".repeat(65),
            "a?b:".repeat(65) + "c",
            "1 in ".repeat(65) + "c",
            "x".repeat(1025),
            "'".to_owned(),
            "1 // 2".to_owned(),
            String::new(),
        ] {
            guard(&bad).expect_err(&bad);
        }
    }
}
