//! One quoting function per place that text is put into.

/// A value in `postgresql.conf`.
pub(super) fn setting(value: &str) -> String {
    let mut quoted = String::with_capacity(value.len() + 2);
    quoted.push('\'');
    for character in value.chars() {
        match character {
            '\'' => quoted.push_str("''"),
            '\\' => quoted.push_str("\\\\"),
            '\n' => quoted.push_str("\\n"),
            '\r' => quoted.push_str("\\r"),
            other => quoted.push(other),
        }
    }
    quoted.push('\'');
    quoted
}

/// A value in a libpq connection string.
pub(super) fn conninfo(value: &str) -> String {
    format!("'{}'", value.replace('\\', "\\\\").replace('\'', "\\'"))
}

/// A name in `pg_hba.conf` or `pg_ident.conf`.
pub(super) fn hba(value: &str) -> String {
    format!("\"{}\"", value.replace('"', "\"\""))
}

/// An SQL identifier.
pub(super) fn identifier(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// An SQL string, whatever `standard_conforming_strings` is.
pub(super) fn literal(text: &str) -> String {
    let quoted = text.replace('\'', "''");
    if quoted.contains('\\') {
        format!(" E'{}'", quoted.replace('\\', "\\\\"))
    } else {
        format!("'{quoted}'")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_breaks_out() {
        assert_eq!(setting("a'b\\c\nport = 1"), "'a''b\\\\c\\nport = 1'");
        assert_eq!(conninfo(r"a'b\c d"), r"'a\'b\\c d'");
        assert_eq!(
            identifier("a\"; DROP ROLE postgres;--"),
            "\"a\"\"; DROP ROLE postgres;--\""
        );
        assert_eq!(literal("a'b"), "'a''b'");
        assert_eq!(literal(r"\'; --"), r" E'\\''; --'");
        assert_eq!(hba("all"), "\"all\"");
    }
}
