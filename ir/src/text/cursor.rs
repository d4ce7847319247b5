//! A place in the text, and the words that can be read there.

/// Why text is no graph; lines and columns count from 1, columns in characters.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{line}:{column}: {message}")]
#[allow(missing_docs)]
pub struct ParseError {
    pub line: usize,
    pub column: usize,
    pub message: String,
}

/// Where reading goes on. Every reader first skips blanks and comments.
pub(super) struct Cursor<'a> {
    text: &'a str,
    at: usize,
}

fn starts_word(c: char) -> bool {
    c.is_ascii_alphabetic() || c == '_'
}

fn in_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_' || c == '.'
}

/// True if a name needs no quotes.
pub(super) fn is_word(name: &str) -> bool {
    name.starts_with(starts_word) && name.chars().all(in_word)
}

/// The name in quotes.
pub(super) fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n"))
}

impl<'a> Cursor<'a> {
    pub fn new(text: &'a str) -> Cursor<'a> {
        Cursor { text, at: 0 }
    }

    fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    fn skip_blanks(&mut self) {
        loop {
            let trimmed = self.rest().trim_start();
            self.at = self.text.len() - trimmed.len();
            if !trimmed.starts_with("//") {
                return;
            }
            self.at += trimmed.find('\n').unwrap_or(trimmed.len());
        }
    }

    /// The place after blanks, for errors found later.
    pub fn place(&mut self) -> usize {
        self.skip_blanks();
        self.at
    }

    pub fn at_end(&mut self) -> bool {
        self.place() == self.text.len()
    }

    /// An error at `place`.
    pub fn error_at(&self, place: usize, message: impl Into<String>) -> ParseError {
        let before = &self.text[..place];
        let start = before.rfind('\n').map_or(0, |i| i + 1);
        let line = before.bytes().filter(|&b| b == b'\n').count() + 1;
        ParseError { line, column: before[start..].chars().count() + 1, message: message.into() }
    }

    /// An error here: what was wanted, and what stands there.
    pub fn expected(&mut self, wanted: &str) -> ParseError {
        let place = self.place();
        let rest = self.rest();
        let end = rest.find(|c: char| !in_word(c)).unwrap_or(rest.len());
        let word = if end > 0 { &rest[..end] } else { rest.get(..rest.chars().next().map_or(0, char::len_utf8)).unwrap_or("") };
        let found = match word {
            "" => "the end of the text".to_string(),
            word => format!("`{}`", word.chars().take(40).collect::<String>()),
        };
        self.error_at(place, format!("expected {wanted}, found {found}"))
    }

    /// Reads `mark` if it stands here.
    pub fn eat(&mut self, mark: &str) -> bool {
        self.skip_blanks();
        let found = self.rest().starts_with(mark);
        if found {
            self.at += mark.len();
        }
        found
    }

    pub fn expect(&mut self, mark: &str) -> Result<(), ParseError> {
        if self.eat(mark) {
            return Ok(());
        }
        Err(self.expected(&format!("`{mark}`")))
    }

    /// The word here, not read yet.
    pub fn peek_word(&mut self) -> Option<&'a str> {
        self.skip_blanks();
        let rest = self.rest();
        let end = rest.find(|c: char| !in_word(c)).unwrap_or(rest.len());
        Some(&rest[..end]).filter(|word| word.starts_with(starts_word))
    }

    pub fn word(&mut self, wanted: &str) -> Result<&'a str, ParseError> {
        let word = self.peek_word().ok_or_else(|| self.expected(wanted))?;
        self.at += word.len();
        Ok(word)
    }

    /// Reads this very word if it stands here.
    pub fn eat_word(&mut self, word: &str) -> bool {
        let found = self.peek_word() == Some(word);
        if found {
            self.at += word.len();
        }
        found
    }

    pub fn string(&mut self, wanted: &str) -> Result<String, ParseError> {
        if !self.eat("\"") {
            return Err(self.expected(&format!("{wanted} in quotes")));
        }
        let start = self.at;
        let mut value = String::new();
        let mut chars = self.rest().char_indices();
        while let Some((i, c)) = chars.next() {
            match c {
                '"' => {
                    self.at = start + i + 1;
                    return Ok(value);
                }
                '\\' => match chars.next() {
                    Some((_, 'n')) => value.push('\n'),
                    Some((_, c @ ('"' | '\\'))) => value.push(c),
                    _ => return Err(self.error_at(start + i, "expected `\\n`, `\\\"` or `\\\\`")),
                },
                '\n' => break,
                c => value.push(c),
            }
        }
        Err(self.error_at(start - 1, "expected a closing quote on the line"))
    }

    /// A word or a string.
    pub fn name(&mut self, wanted: &str) -> Result<String, ParseError> {
        match self.peek_word() {
            Some(word) => {
                self.at += word.len();
                Ok(word.to_string())
            }
            None => self.string(wanted),
        }
    }

    /// A decimal integer with an optional minus.
    pub fn integer<T: std::str::FromStr>(&mut self, wanted: &str) -> Result<T, ParseError> {
        self.skip_blanks();
        let rest = self.rest();
        let digits = rest.strip_prefix('-').unwrap_or(rest);
        let len = digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len());
        let end = rest.len() - digits.len() + len;
        match rest[..end].parse() {
            Ok(value) => {
                self.at += end;
                Ok(value)
            }
            Err(_) if len > 0 => Err(self.error_at(self.at, format!("expected {wanted}, but {} is out of range", &rest[..end]))),
            Err(_) => Err(self.expected(wanted)),
        }
    }

    /// The text of a number here: `-1`, `1.5e-7`, `inf`, `nan:7ff…`, `true`.
    pub fn number(&mut self) -> &'a str {
        self.skip_blanks();
        let rest = self.rest();
        let mut end = 0;
        for (i, c) in rest.char_indices() {
            let before = &rest[..i];
            let sign = matches!(c, '+' | '-')
                && (i == 0
                    || before.ends_with(['e', 'E']) && before.trim_start_matches('-').starts_with(|c: char| c.is_ascii_digit()));
            if !(c.is_ascii_alphanumeric() || c == '.' || sign || c == ':' && before == "nan") {
                break;
            }
            end = i + c.len_utf8();
        }
        self.at += end;
        &rest[..end]
    }

    /// Items between `open` and `close`, commas between.
    pub fn list<T>(
        &mut self,
        open: &str,
        close: &str,
        mut item: impl FnMut(&mut Self) -> Result<T, ParseError>,
    ) -> Result<Vec<T>, ParseError> {
        self.expect(open)?;
        let mut items = Vec::new();
        if self.eat(close) {
            return Ok(items);
        }
        loop {
            items.push(item(self)?);
            if self.eat(close) {
                return Ok(items);
            }
            if !self.eat(",") {
                return Err(self.expected(&format!("`,` or `{close}`")));
            }
        }
    }
}
