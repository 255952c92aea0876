//! An error with all its causes in one line, for logs and conditions.

use std::error::Error;

/// `failed to do this: because of that: because of another`. A cause that the error above it
/// repeats already is not said twice.
#[must_use]
pub fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let next = error.to_string();
        if !text.ends_with(&next) {
            text.push_str(": ");
            text.push_str(&next);
        }
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("{text}")]
    struct Link {
        text: &'static str,
        source: Option<Box<Link>>,
    }

    fn link(text: &'static str, source: Option<Link>) -> Link {
        Link {
            text,
            source: source.map(Box::new),
        }
    }

    #[test]
    fn every_cause_is_said_once() {
        let error = link("a", Some(link("b", Some(link("c", None)))));
        assert_eq!(chain(&error), "a: b: c");
        let repeated = link("a: b", Some(link("b", None)));
        assert_eq!(chain(&repeated), "a: b");
    }
}
