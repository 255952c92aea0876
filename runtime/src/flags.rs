//! How flags are read that every binary has.

use std::net::SocketAddr;
use std::path::PathBuf;

/// An address to listen on, or nowhere.
pub type Listen = Option<SocketAddr>;

/// `:8081`, `127.0.0.1:8081` or `0`.
///
/// # Errors
///
/// Says how to write it.
pub fn listen(text: &str) -> Result<Listen, String> {
    if text == "0" || text.is_empty() {
        return Ok(None);
    }
    let full = match text.strip_prefix(':') {
        Some(port) => format!("[::]:{port}"),
        None => text.to_owned(),
    };
    full.parse()
        .map(Some)
        .map_err(|_| "write it like :8081, 127.0.0.1:8081, or 0 for nowhere".to_owned())
}

/// Text that is not empty, without the spaces around it.
///
/// # Errors
///
/// Says what to do about an empty one.
pub fn some_text(text: &str) -> Result<String, String> {
    match text.trim() {
        "" => Err("it is empty: leave it out, or give it a value".to_owned()),
        text => Ok(text.to_owned()),
    }
}

/// A path that is not empty.
///
/// # Errors
///
/// Says what to do about an empty one.
pub fn some_path(text: &str) -> Result<PathBuf, String> {
    some_text(text).map(PathBuf::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_written_as_deployed_programs_do() {
        for (text, wanted) in [
            ("0", None),
            ("", None),
            (":8081", Some("[::]:8081")),
            ("127.0.0.1:9", Some("127.0.0.1:9")),
        ] {
            let wanted = wanted.map(|text| text.parse().unwrap());
            assert_eq!(listen(text), Ok(wanted), "{text}");
        }
        assert!(listen("8081").is_err());
    }

    #[test]
    fn empty_text_is_refused_with_a_remedy() {
        assert_eq!(some_text(" a "), Ok("a".to_owned()));
        assert!(some_path(" ").unwrap_err().contains("leave it out"));
    }
}
