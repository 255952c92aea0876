//! XML from libvirt, with bounds.

use roxmltree::{Document, Node, ParsingOptions};

/// A tree of this many nodes takes some 15 MB while it is read. An instance with a thousand devices
/// has a fifth of it.
const MAX_NODES: u32 = 200_000;
/// The longest string that libvirt sends.
const MAX_BYTES: usize = 4 << 20;

/// Why the XML is of no use.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It is too long.
    #[error("the XML has {0} bytes, more than {MAX_BYTES}")]
    Long(usize),
    /// It is not well-formed, has too many nodes, or declares a document type.
    #[error("failed to parse the XML")]
    Malformed(#[from] roxmltree::Error),
    /// It is about something else.
    #[error("the XML is about \"{found}\" and not about \"{expected}\"")]
    Root {
        /// What it should be about.
        expected: &'static str,
        /// What it is about.
        found: String,
    },
    /// It does not say what it is about.
    #[error("the XML has no \"{0}\"")]
    Missing(&'static str),
    /// The UUID is none.
    #[error("\"{0}\" is not a UUID")]
    Uuid(String),
}

/// The tree of a text whose root has this name. Document types, and so entities, are refused.
///
/// # Errors
///
/// When the text is no such tree.
pub(crate) fn document<'x>(text: &'x str, root: &'static str) -> Result<Document<'x>, Error> {
    if text.len() > MAX_BYTES {
        return Err(Error::Long(text.len()));
    }
    let options = ParsingOptions {
        nodes_limit: MAX_NODES,
        ..ParsingOptions::default()
    };
    let document = Document::parse_with_options(text, options)?;
    let found = document.root_element().tag_name().name();
    if found != root {
        return Err(Error::Root {
            expected: root,
            found: found.chars().take(64).collect(),
        });
    }
    Ok(document)
}

/// The first child element of this name. libvirt's own elements have no namespace.
pub(crate) fn child<'a, 'x>(node: Node<'a, 'x>, name: &str) -> Option<Node<'a, 'x>> {
    children(node, name).next()
}

/// The first descendant along these names.
pub(crate) fn at<'a, 'x>(node: Node<'a, 'x>, path: &[&str]) -> Option<Node<'a, 'x>> {
    path.iter().try_fold(node, |node, name| child(node, name))
}

/// All child elements of this name.
pub(crate) fn children<'a, 'x>(
    node: Node<'a, 'x>,
    name: &str,
) -> impl Iterator<Item = Node<'a, 'x>> {
    node.children().filter(move |child| {
        let tag = child.tag_name();
        child.is_element() && tag.namespace().is_none() && tag.name() == name
    })
}

/// The text of an element without the white space around it.
pub(crate) fn text<'a>(node: Node<'a, '_>) -> &'a str {
    node.text().unwrap_or_default().trim()
}

/// The text of an element as a value; `None` if there is none.
pub(crate) fn value(node: Option<Node<'_, '_>>) -> Option<String> {
    let text = text(node?);
    (!text.is_empty()).then(|| text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(text: &str) -> String {
        match document(text, "domain") {
            Ok(_) => String::new(),
            Err(Error::Malformed(error)) => error.to_string(),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn document_types_and_entities_are_refused() {
        let laughs = "<!DOCTYPE domain [<!ENTITY a 'ha'><!ENTITY b '&a;&a;'>]><domain>&b;</domain>";
        assert_eq!(error(laughs), "XML with DTD detected");
        let file =
            "<!DOCTYPE domain [<!ENTITY a SYSTEM 'file:///etc/passwd'>]><domain>&a;</domain>";
        assert_eq!(error(file), "XML with DTD detected");
        assert!(error("<domain>&a;</domain>").contains("unknown entity"));
        assert_eq!(error("<domain>&lt;&#65;&amp;</domain>"), "");
    }

    #[test]
    fn size_is_bounded_and_depth_is_no_danger() {
        let deep = format!(
            "<domain>{}{}</domain>",
            "<a>".repeat(90_000),
            "</a>".repeat(90_000)
        );
        assert_eq!(error(&deep), "");
        let many = format!("<domain>{}</domain>", "<a/>".repeat(200_001));
        assert_eq!(error(&many), "nodes limit reached");
        let long = format!("<domain>{}</domain>", " ".repeat(MAX_BYTES));
        assert!(
            error(&long).contains("more than 4194304"),
            "{}",
            error(&long)
        );
    }

    #[test]
    fn elements_of_another_namespace_are_not_libvirts() {
        let text = "<domain xmlns:q='q'><q:name>a</q:name><name> b </name><name>c</name></domain>";
        let document = document(text, "domain").unwrap();
        let root = document.root_element();
        assert_eq!(value(child(root, "name")).as_deref(), Some("b"));
        assert_eq!(children(root, "name").count(), 2);
        assert!(at(root, &["name", "name"]).is_none());
    }
}
