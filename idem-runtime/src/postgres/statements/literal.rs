//! Values inside statements of the simple protocol, which has no binds.
//!
//! Each is a number, hexadecimal digits, or text without quotes and backslashes, so nothing in them can end a literal,
//! whatever `standard_conforming_strings` says.

use sqlx::{AssertSqlSafe, SqlSafeStr, SqlStr};

use crate::hex;
use crate::operation_id::OperationId;

/// Whoever calls it has put nothing into `sql` but our own words, quoted names and the literals of this module.
pub(crate) fn safe(sql: String) -> SqlStr {
    AssertSqlSafe(sql).into_sql_str()
}

/// A name as SQL reads it, whatever is in it.
pub(crate) fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// `scope = … AND key = …`
pub(super) fn push_condition(sql: &mut String, id: &OperationId) {
    sql.push_str("scope OPERATOR(pg_catalog.=) ");
    push_id(sql, id, " AND key OPERATOR(pg_catalog.=) ");
}

pub(super) fn push_id(sql: &mut String, id: &OperationId, between: &str) {
    push_text(sql, &id.scope);
    sql.push_str(between);
    push_text(sql, &id.key);
}

/// A literal costs a third of what a call of `convert_from` does, which is planned and run each time.
pub(crate) fn push_text(sql: &mut String, text: &str) {
    if text.bytes().all(|byte| matches!(byte, b' '..=b'~') && !matches!(byte, b'\'' | b'\\')) {
        sql.push('\'');
        sql.push_str(text);
        sql.push('\'');
    } else {
        sql.push_str("pg_catalog.convert_from(");
        push_bytes(sql, text.as_bytes());
        sql.push_str("::pg_catalog.bytea, 'UTF8')");
    }
}

pub(crate) fn push_bytes(sql: &mut String, bytes: &[u8]) {
    sql.push_str("E'\\\\x");
    hex::push(sql, bytes);
    sql.push('\'');
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> String {
        let mut sql = String::new();
        push_text(&mut sql, text);
        sql
    }

    #[test]
    fn no_text_ends_its_literal() {
        assert_eq!(text("order:7"), "'order:7'");
        for hostile in ["'", "\\", "a'; DROP TABLE orders; --", "\u{fc}", "\0", "\n"] {
            let sql = text(hostile);
            let digits = sql.strip_prefix("pg_catalog.convert_from(E'\\\\x").and_then(|rest| rest.split('\'').next());
            assert_eq!(digits, Some(hex::encode(hostile.as_bytes()).as_str()), "{sql}");
        }
    }

    #[test]
    fn a_quoted_name_ends_at_its_own_quote() {
        assert_eq!(quoted("id\"em"), "\"id\"\"em\"");
    }
}
