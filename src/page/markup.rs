//! Text that is safe inside HTML, SVG and scripts.

/// Text as HTML: no character of a name can end an element or an attribute.
pub fn escape(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => safe += "&amp;",
            '<' => safe += "&lt;",
            '>' => safe += "&gt;",
            '"' => safe += "&quot;",
            '\'' => safe += "&#39;",
            // Controls have no place in HTML, and marks of direction could make a name read as another.
            c if c.is_control() && c != '\n' => safe.push('\u{fffd}'),
            '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => safe.push('\u{fffd}'),
            c => safe.push(c),
        }
    }
    safe
}

/// A value as JSON that can stand in a `<script>`: nothing in it ends the element.
pub fn script_json(value: &impl serde::Serialize) -> String {
    let text = serde_json::to_string(value).unwrap_or_else(|error| unreachable!("plain data without JSON: {error}"));
    text.replace('<', "\\u003c").replace('\u{2028}', "\\u2028").replace('\u{2029}', "\\u2029")
}

/// A coordinate, to a hundredth.
pub fn at(x: f64) -> String {
    let text = format!("{x:.2}");
    let short = text.trim_end_matches('0').trim_end_matches('.');
    if short == "-0" { "0".into() } else { short.into() }
}

/// At most `most` characters of a text, the last one `…` where some are left out.
pub fn shortened(text: &str, most: usize) -> String {
    if text.chars().count() <= most {
        return text.to_owned();
    }
    text.chars().take(most.saturating_sub(1)).chain(['…']).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_cannot_leave_their_place() {
        assert_eq!(escape("<script>\"'&\u{7}\u{202e}"), "&lt;script&gt;&quot;&#39;&amp;\u{fffd}\u{fffd}");
        assert_eq!(script_json(&"</script>\u{2028}"), "\"\\u003c/script>\\u2028\"");
    }

    #[test]
    fn coordinates_are_short() {
        assert_eq!([at(1.0), at(0.126), at(-0.001), at(12.5)], ["1", "0.13", "0", "12.5"].map(String::from));
        assert_eq!([shortened("abc", 3), shortened("abcd", 3)], ["abc", "ab…"].map(String::from));
    }
}
