//! Removing secrets from statements that PostgreSQL logs.

const WORD: &str = "password";
const HIDDEN: &str = "'***'";

/// Returns `text` without passwords. It replaces every string that follows the word "password" (in `ALTER ROLE …
/// PASSWORD '…'`, in connection strings), and every password in a URI (`postgresql://user:secret@host`). A string that
/// is not closed is hidden to its end.
pub(super) fn redact(text: &str) -> String {
    redact_uris(&redact_words(text))
}

/// Replaces the text between the first colon after `://` and the last `@` before the host ends.
fn redact_uris(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("://") {
        shown.push_str(before);
        shown.push_str("://");
        // A password may hold anything but these unencoded, and a slash ends the host.
        let end = after.find(|c: char| c.is_whitespace() || ['/', '\'', '"', '?'].contains(&c));
        let authority = &after[..end.unwrap_or(after.len())];
        let secret = authority
            .rfind('@')
            .and_then(|at| Some((authority[..at].find(':')?, at)));
        match secret {
            Some((colon, at)) => {
                shown.push_str(&authority[..=colon]);
                shown.push_str("***");
                shown.push_str(&authority[at..]);
            }
            None => shown.push_str(authority),
        }
        rest = &after[authority.len()..];
    }
    shown.push_str(rest);
    shown
}

fn redact_words(text: &str) -> String {
    // ASCII only, so that positions stay the same.
    let lower = text.to_ascii_lowercase();
    let mut shown = String::with_capacity(text.len());
    let mut at = 0;
    while let Some(found) = lower[at..].find(WORD) {
        let after = at + found + WORD.len();
        shown.push_str(&text[at..after]);
        at = match secret(&text[after..]) {
            Some((start, end)) => {
                shown.push_str(&text[after..after + start]);
                shown.push_str(HIDDEN);
                after + end
            }
            None => after,
        };
    }
    shown.push_str(&text[at..]);
    shown
}

/// The offsets of the next string: behind blanks, comments, `=`, `:`, quotes around the word, and a prefix such as `E`.
fn secret(rest: &str) -> Option<(usize, usize)> {
    let start = after_blanks(rest, &['=', ':', '"'])?;
    let value = &rest[start..];
    let prefix = ["e'", "E'", "u&'", "U&'", "n'", "N'"]
        .iter()
        .find(|prefix| value.starts_with(**prefix));
    let quote = prefix.map_or(0, |prefix| prefix.len() - 1);
    if value[quote..].starts_with('\'') {
        return Some((start, start + quote + end_of_strings(&value[quote..])));
    }
    if let Some(rest) = value.strip_prefix('$') {
        let tag = rest.find('$').map(|end| &value[..end + 2])?;
        let end = value[tag.len()..]
            .find(tag)
            .map_or(value.len(), |end| tag.len() + end + tag.len());
        return Some((start, start + end));
    }
    // `password=geheim` in a connection string.
    let unquoted = rest[..start].contains('=') && start > 0;
    unquoted.then(|| (start, start + value.find(char::is_whitespace).unwrap_or(value.len())))
}

/// The offset of the first character that is no blank, no comment, and none of `others`.
fn after_blanks(text: &str, others: &[char]) -> Option<usize> {
    let mut at = 0;
    loop {
        let rest = &text[at..];
        at += match rest.chars().next()? {
            c if c.is_whitespace() || others.contains(&c) => c.len_utf8(),
            '-' if rest.starts_with("--") => rest.find(['\n', '\r'])?,
            '/' if rest.starts_with("/*") => end_of_comment(rest)?,
            _ => return Some(at),
        };
    }
}

/// Length of the comment at the beginning of `text`, with those inside it; `None` if it is not closed.
fn end_of_comment(text: &str) -> Option<usize> {
    let (mut at, mut depth) = (0, 0_usize);
    loop {
        let found = at + text[at..].find(['/', '*'])?;
        let (step, deeper) = match text.get(found..found + 2) {
            Some("/*") => (2, depth + 1),
            Some("*/") => (2, depth - 1),
            _ => (1, depth),
        };
        (at, depth) = (found + step, deeper);
        if depth == 0 {
            return Some(at);
        }
    }
}

/// Length of the string at the beginning of `text`, including strings that continue it after a line break.
fn end_of_strings(text: &str) -> usize {
    let mut end = end_of_string(text);
    while let Some(gap) = after_blanks(&text[end..], &[]) {
        let next = end + gap;
        if !text[end..next].contains(['\n', '\r']) || !text[next..].starts_with('\'') {
            break;
        }
        end = next + end_of_string(&text[next..]);
    }
    end
}

/// Length of the string at the beginning of `text`, its quotes included; doubled and escaped quotes are inside.
fn end_of_string(text: &str) -> usize {
    let mut characters = text.char_indices().skip(1).peekable();
    while let Some((at, character)) = characters.next() {
        match character {
            '\\' => {
                characters.next();
            }
            '\'' if characters.peek().is_some_and(|(_, next)| *next == '\'') => {
                characters.next();
            }
            '\'' => return at + 1,
            _ => {}
        }
    }
    text.len()
}

#[cfg(test)]
mod tests {
    use super::redact;

    #[test]
    fn strings_after_the_word_are_hidden() {
        for (text, expected) in [
            (
                "ALTER ROLE a PASSWORD 'x''y' VALID UNTIL 'z'",
                "ALTER ROLE a PASSWORD '***' VALID UNTIL 'z'",
            ),
            (
                "create role a encrypted password E'x\\'y';",
                "create role a encrypted password '***';",
            ),
            ("ALTER ROLE a PASSWORD $$x$$;", "ALTER ROLE a PASSWORD '***';"),
            ("ALTER ROLE a PASSWORD 'not closed", "ALTER ROLE a PASSWORD '***'"),
            (
                "CREATE SUBSCRIPTION s CONNECTION 'host=a password=x user=b'",
                "CREATE SUBSCRIPTION s CONNECTION 'host=a password='***' user=b'",
            ),
            ("ALTER ROLE ä PASSWORD 'ü' -- 'ö'", "ALTER ROLE ä PASSWORD '***' -- 'ö'"),
            (
                "OPTIONS (user 'bob', password 'x', b 'c')",
                "OPTIONS (user 'bob', password '***', b 'c')",
            ),
            (
                "CREATE SUBSCRIPTION s CONNECTION 'postgresql://bob:ge:h@im@h:5432/d?x=1' -- 'y://z:q@h'",
                "CREATE SUBSCRIPTION s CONNECTION 'postgresql://bob:***@h:5432/d?x=1' -- 'y://z:***@h'",
            ),
            ("ALTER ROLE a PASSWORD /**/ 'x'", "ALTER ROLE a PASSWORD /**/ '***'"),
            (
                "ALTER ROLE a PASSWORD /* a /* 'b' */ */\t-- 'c'\n E'x' VALID UNTIL 'z'",
                "ALTER ROLE a PASSWORD /* a /* 'b' */ */\t-- 'c'\n '***' VALID UNTIL 'z'",
            ),
            (
                "ALTER ROLE a PASSWORD 'x'\n  'y' -- and\n 'z' VALID UNTIL 'u'",
                "ALTER ROLE a PASSWORD '***' VALID UNTIL 'u'",
            ),
            (
                "ALTER ROLE a PASSWORD /* not closed 'x'",
                "ALTER ROLE a PASSWORD /* not closed 'x'",
            ),
            (
                "SELECT dblink('postgres:///d?user=a&password=x b')",
                "SELECT dblink('postgres:///d?user=a&password='***' b')",
            ),
        ] {
            assert_eq!(redact(text), expected);
        }
    }

    #[test]
    fn other_text_stays() {
        for text in [
            "password authentication failed for user \"app\"",
            "SELECT 1",
            "PASSWORD",
            "see https://host:80/a@b and postgresql://bob@host/d",
            "password NULL",
        ] {
            assert_eq!(redact(text), text);
        }
    }
}
