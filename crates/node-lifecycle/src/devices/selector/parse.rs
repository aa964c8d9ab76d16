//! Parses text into an expression.

/// Maximum nesting.
const MAX_DEPTH: usize = 30;
/// Maximum number of fields, elements and methods in a chain.
const MAX_CHAIN: usize = 12;
/// Maximum length: that of the API server.
const MAX_LENGTH: usize = 10 * 1024;

/// An expression.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Expression {
    /// A literal, or a name.
    Bool(bool),
    Int(i64),
    Text(String),
    Name(String),
    List(Vec<Self>),
    Not(Box<Self>),
    All(Vec<Self>),
    Any(Vec<Self>),
    Compare(Box<Self>, &'static str, Box<Self>),
    /// Condition, value if it holds, and value if not.
    If(Box<[Self; 3]>),
    /// A field, or an element of a map. `optional`: it may be absent.
    Get {
        of: Box<Self>,
        key: Box<Self>,
        optional: bool,
    },
    /// A function call; the object of a method is its first argument.
    Call {
        name: String,
        arguments: Vec<Self>,
    },
}

#[derive(Clone, Debug, PartialEq)]
enum Token {
    Name(String),
    Int(i64),
    Text(String),
    Sign(&'static str),
}

/// Operators and punctuation, the longer ones first.
const SIGNS: [&str; 18] = [
    "&&", "||", "==", "!=", "<=", ">=", "<", ">", "!", "(", ")", "[", "]", ".", ",", "?", ":", "-",
];
const COMPARISONS: [&str; 6] = ["==", "!=", "<=", ">=", "<", ">"];

/// Parses an expression; None if any part of it is not supported.
pub(super) fn parse(text: &str) -> Option<Expression> {
    if text.len() > MAX_LENGTH {
        return None;
    }
    let mut parser = Parser {
        tokens: tokens(text)?,
        at: 0,
        depth: 0,
    };
    let expression = parser.expression()?;
    (parser.at == parser.tokens.len()).then_some(expression)
}

fn tokens(text: &str) -> Option<Vec<Token>> {
    let mut tokens = Vec::new();
    let mut rest = text.trim_start();
    while let Some(first) = rest.chars().next() {
        let (token, length) = if first == '"' || first == '\'' {
            let inner = &rest[1..];
            let end = inner.find(first)?;
            // Escapes are rare in names and values of devices.
            if inner[..end].contains('\\') {
                return None;
            }
            (Token::Text(inner[..end].to_owned()), end + 2)
        } else if first.is_ascii_digit() {
            let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
            if rest[end..].starts_with(|c: char| c.is_alphanumeric() || c == '.') {
                return None;
            }
            (Token::Int(rest[..end].parse().ok()?), end)
        } else if first.is_ascii_alphabetic() || first == '_' {
            let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
            let end = rest.find(|c: char| !is_part(c)).unwrap_or(rest.len());
            // r"…" and b"…" are other kinds of strings.
            if rest[end..].starts_with(['"', '\'']) {
                return None;
            }
            (Token::Name(rest[..end].to_owned()), end)
        } else {
            let sign = SIGNS.into_iter().find(|sign| rest.starts_with(sign))?;
            (Token::Sign(sign), sign.len())
        };
        tokens.push(token);
        rest = rest[length..].trim_start();
    }
    Some(tokens)
}

struct Parser {
    tokens: Vec<Token>,
    at: usize,
    depth: usize,
}

impl Parser {
    /// Takes a sign if it is the next token.
    fn take(&mut self, sign: &str) -> bool {
        let is_next = matches!(self.tokens.get(self.at), Some(Token::Sign(next)) if *next == sign);
        self.at += usize::from(is_next);
        is_next
    }

    fn expect(&mut self, sign: &str) -> Option<()> {
        self.take(sign).then_some(())
    }

    fn next(&mut self) -> Option<Token> {
        let token = self.tokens.get(self.at).cloned();
        self.at += 1;
        token
    }

    fn expression(&mut self) -> Option<Expression> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return None;
        }
        let condition = self.any()?;
        let expression = if self.take("?") {
            let holds = self.expression()?;
            self.expect(":")?;
            Expression::If(Box::new([condition, holds, self.expression()?]))
        } else {
            condition
        };
        self.depth -= 1;
        Some(expression)
    }

    fn any(&mut self) -> Option<Expression> {
        let mut all = vec![self.all()?];
        while self.take("||") {
            all.push(self.all()?);
        }
        Some(if all.len() == 1 {
            all.remove(0)
        } else {
            Expression::Any(all)
        })
    }

    fn all(&mut self) -> Option<Expression> {
        let mut all = vec![self.comparison()?];
        while self.take("&&") {
            all.push(self.comparison()?);
        }
        Some(if all.len() == 1 {
            all.remove(0)
        } else {
            Expression::All(all)
        })
    }

    fn comparison(&mut self) -> Option<Expression> {
        let left = self.unary()?;
        let is_in = matches!(self.tokens.get(self.at), Some(Token::Name(name)) if name == "in");
        let sign = if is_in {
            self.at += 1;
            Some("in")
        } else {
            COMPARISONS.into_iter().find(|sign| self.take(sign))
        };
        Some(match sign {
            Some(sign) => Expression::Compare(Box::new(left), sign, Box::new(self.unary()?)),
            None => left,
        })
    }

    fn unary(&mut self) -> Option<Expression> {
        if self.take("!") {
            self.depth += 1;
            if self.depth > MAX_DEPTH {
                return None;
            }
            let inner = self.unary()?;
            self.depth -= 1;
            return Some(Expression::Not(Box::new(inner)));
        }
        let mut expression = self.primary()?;
        for _ in 0..MAX_CHAIN {
            let (key, optional) = if self.take(".") {
                let optional = self.take("?");
                let Token::Name(name) = self.next()? else { return None };
                if self.take("(") {
                    let mut arguments = vec![expression];
                    self.list(")", &mut arguments)?;
                    expression = Expression::Call { name, arguments };
                    continue;
                }
                (Expression::Text(name), optional)
            } else if self.take("[") {
                let optional = self.take("?");
                let key = self.expression()?;
                self.expect("]")?;
                (key, optional)
            } else {
                return Some(expression);
            };
            expression = Expression::Get {
                of: Box::new(expression),
                key: Box::new(key),
                optional,
            };
        }
        None
    }

    fn primary(&mut self) -> Option<Expression> {
        Some(match self.next()? {
            Token::Int(number) => Expression::Int(number),
            Token::Text(text) => Expression::Text(text),
            Token::Name(name) if name == "true" || name == "false" => Expression::Bool(name == "true"),
            Token::Name(name) => {
                if self.take("(") {
                    let mut arguments = Vec::new();
                    self.list(")", &mut arguments)?;
                    Expression::Call { name, arguments }
                } else {
                    Expression::Name(name)
                }
            }
            Token::Sign("-") => match self.next()? {
                Token::Int(number) => Expression::Int(-number),
                _ => return None,
            },
            Token::Sign("(") => {
                let inner = self.expression()?;
                self.expect(")")?;
                inner
            }
            Token::Sign("[") => {
                let mut items = Vec::new();
                self.list("]", &mut items)?;
                Expression::List(items)
            }
            Token::Sign(_) => return None,
        })
    }

    /// Expressions between commas, up to `end`.
    fn list(&mut self, end: &str, into: &mut Vec<Expression>) -> Option<()> {
        if self.take(end) {
            return Some(());
        }
        loop {
            into.push(self.expression()?);
            if self.take(end) {
                return Some(());
            }
            self.expect(",")?;
        }
    }
}
