use std::borrow::Cow;
use std::fmt::Display;

/// The name of a part of an operation, by which a retry finds what an earlier attempt recorded.
///
/// A string literal, or in a loop a literal and what tells the rounds apart: `("charge item", index)`. No two names share
/// a recorded form, whatever the parts hold.
///
/// ```
/// # use idem_runtime::{Error, IdempotencyKey, Operation};
/// # async fn charge(_: IdempotencyKey, item: &str) -> Result<i64, Error> { Ok(item.len() as i64) }
/// async fn charge_all(op: &mut Operation, items: &[String]) -> Result<(), Error> {
///     for (index, item) in items.iter().enumerate() {
///         op.step(("charge item", index), async |key| charge(key, item).await).await?;
///     }
///     Ok(())
/// }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be the name of a step",
    label = "must be a string literal, or a literal and an index",
    note = "use `\"charge\"`, or `(\"charge item\", index)` in a loop"
)]
pub trait StepName {
    /// The form in which the name is recorded.
    fn recorded(&self) -> Cow<'_, str>;
}

impl StepName for &str {
    fn recorded(&self) -> Cow<'_, str> {
        escaped(self)
    }
}

// For names that a helper is given.
#[diagnostic::do_not_recommend]
impl StepName for &String {
    fn recorded(&self) -> Cow<'_, str> {
        escaped(self)
    }
}

impl<I: Display> StepName for (&str, I) {
    fn recorded(&self) -> Cow<'_, str> {
        let (name, index) = self;
        Cow::Owned(format!("{}[{index}]", escaped(name)))
    }
}

/// Without a bracket that could begin an index.
fn escaped(name: &str) -> Cow<'_, str> {
    if name.contains(['[', '\\']) {
        Cow::Owned(name.replace('\\', r"\\").replace('[', r"\["))
    } else {
        Cow::Borrowed(name)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    #[test]
    fn no_two_names_share_a_recorded_form() {
        let parts = ["", "a", "b", "[", "]", "\\", "a[", "a[1]", "a[1", "1]", "\\[", "a\\", "[1]", "\\\\[1]"];
        let mut seen: HashMap<String, (String, Option<String>)> = HashMap::new();
        let plain = parts.iter().map(|name| (name.recorded().into_owned(), (name.to_string(), None)));
        let indexed = parts.iter().flat_map(|name| {
            parts
                .iter()
                .map(|index| ((*name, *index).recorded().into_owned(), (name.to_string(), Some(index.to_string()))))
        });
        for (recorded, name) in plain.chain(indexed) {
            if let Some(other) = seen.insert(recorded.clone(), name.clone()) {
                panic!("{name:?} and {other:?} are both recorded as {recorded}");
            }
        }
    }

    #[test]
    fn names_read_as_they_are_written() {
        assert_eq!("charge".recorded(), "charge");
        assert_eq!(("charge item", 3).recorded(), "charge item[3]");
    }
}
