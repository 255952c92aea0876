//! What others have written into the metadata of an instance's XML.
//!
//! The HA policy (`restart`, `evict` or `notify`) and the priority of an instance are, in this
//! order,
//!
//! 1. in our own element, which `virsh metadata` or any client of libvirt sets on a running or
//!    stopped instance:
//!
//!    ```xml
//!    <cobalt:instance xmlns:cobalt="https://cobaltcore.dev/xmlns/instance/1.0">
//!      <cobalt:ha policy="restart" priority="10"/>
//!    </cobalt:instance>
//!    ```
//!
//! 2. the extra specs `cobalt:ha_policy` and `cobalt:ha_priority` of the flavor, where Nova writes
//!    them: `<nova:extraSpec name="cobalt:ha_policy">evict</nova:extraSpec>`.
//!
//! A value that is none of these words is a warning, and counts as if it was not there: what then
//! decides is the next place, and in the end the Hypervisor.

use cobalt_api::hypervisor::HaPolicy;
use roxmltree::Node;

use crate::facts::{Warnings, xml};

/// The namespace of our own element.
pub const NAMESPACE: &str = "https://cobaltcore.dev/xmlns/instance/1.0";
/// The extra spec with the policy.
pub const POLICY_SPEC: &str = "cobalt:ha_policy";
/// The extra spec with the priority.
pub const PRIORITY_SPEC: &str = "cobalt:ha_priority";
/// What the namespaces of Nova begin with; the version follows.
const NOVA: &str = "http://openstack.org/xmlns/libvirt/nova/";

/// What Nova calls an instance and its owner.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Nova {
    /// The name that its user gave it.
    pub name: Option<String>,
    /// The name of the flavor.
    pub flavor: Option<String>,
    /// The project.
    pub project_id: Option<String>,
    /// The name of the project.
    pub project_name: Option<String>,
    /// The user.
    pub user_id: Option<String>,
    /// The name of the user.
    pub user_name: Option<String>,
}

/// All of it.
#[derive(Debug, Default)]
pub(super) struct Metadata {
    pub ha_policy: Option<HaPolicy>,
    pub priority: Option<i32>,
    pub nova: Option<Box<Nova>>,
}

/// Reads the element `metadata`.
pub(super) fn read(metadata: Node<'_, '_>, warnings: &mut Warnings) -> Metadata {
    let mut found = Metadata::default();
    let root = |known: fn(&str) -> bool| {
        metadata.children().find(|node| {
            let tag = node.tag_name();
            tag.name() == "instance" && tag.namespace().is_some_and(known)
        })
    };
    if let Some(ha) = root(|name| name == NAMESPACE).and_then(|own| inner(own, "ha")) {
        found.policy(ha.attribute("policy"), warnings);
        found.priority(ha.attribute("priority"), warnings);
    }
    let Some(nova) = root(|name| name.starts_with(NOVA)) else {
        return found;
    };
    let flavor = inner(nova, "flavor");
    let specs = flavor.and_then(|flavor| inner(flavor, "extraSpecs"));
    let spec = |name: &str| {
        let mut all = specs?.children();
        let spec = all.find(|spec| spec.is_element() && spec.attribute("name") == Some(name))?;
        Some(xml::text(spec))
    };
    if found.ha_policy.is_none() {
        found.policy(spec(POLICY_SPEC), warnings);
    }
    if found.priority.is_none() {
        found.priority(spec(PRIORITY_SPEC), warnings);
    }
    let owner = |name| inner(inner(nova, "owner")?, name);
    let id = |node: Option<Node<'_, '_>>| Some(node?.attribute("uuid")?.to_owned());
    found.nova = Some(Box::new(Nova {
        name: xml::value(inner(nova, "name")),
        flavor: flavor.and_then(|flavor| Some(flavor.attribute("name")?.to_owned())),
        project_id: id(owner("project")),
        project_name: xml::value(owner("project")),
        user_id: id(owner("user")),
        user_name: xml::value(owner("user")),
    }));
    found
}

impl Metadata {
    fn policy(&mut self, text: Option<&str>, warnings: &mut Warnings) {
        let Some(text) = text else { return };
        match text.trim().to_ascii_lowercase().parse() {
            Ok(policy) => self.ha_policy = Some(policy),
            Err(_) => warnings.add(|| {
                let known: Vec<&str> = HaPolicy::ALL.iter().map(|known| known.as_str()).collect();
                let text: String = text.chars().take(64).collect();
                format!("\"{text}\" is not an HA policy: write {}", known.join(", "))
            }),
        }
    }

    fn priority(&mut self, text: Option<&str>, warnings: &mut Warnings) {
        let Some(text) = text else { return };
        match text.trim().parse() {
            Ok(priority) => self.priority = Some(priority),
            Err(_) => warnings.add(|| {
                let text: String = text.chars().take(64).collect();
                format!("\"{text}\" is not a priority: write a whole number")
            }),
        }
    }
}

/// The first child of this name in its parent's namespace, or in none.
fn inner<'a, 'x>(parent: Node<'a, 'x>, name: &str) -> Option<Node<'a, 'x>> {
    let namespace = parent.tag_name().namespace();
    parent.children().find(|node| {
        let tag = node.tag_name();
        tag.name() == name && (tag.namespace().is_none() || tag.namespace() == namespace)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn metadata(inner: &str) -> (Metadata, Vec<String>) {
        let text = format!("<metadata>{inner}</metadata>");
        let document = xml::document(&text, "metadata").unwrap();
        let mut warnings = Warnings::default();
        let found = read(document.root_element(), &mut warnings);
        (found, warnings.0)
    }

    fn own(ha: &str) -> String {
        format!("<cobalt:instance xmlns:cobalt='{NAMESPACE}'>{ha}</cobalt:instance>")
    }

    fn nova(specs: &str) -> String {
        format!(
            "<nova:instance xmlns:nova='{NOVA}1.1'><nova:package version='31.0.0'/>\
             <nova:name>shop &amp; co</nova:name><nova:flavor name='g_k_c6_m24_v2' id='7'>\
             <nova:memory>24560</nova:memory><nova:extraSpecs>{specs}</nova:extraSpecs>\
             </nova:flavor><nova:owner><nova:user uuid='u1'>ann</nova:user>\
             <nova:project uuid='p1'>shop</nova:project></nova:owner></nova:instance>"
        )
    }

    fn spec(name: &str, value: &str) -> String {
        format!("<nova:extraSpec name='{name}'>{value}</nova:extraSpec>")
    }

    #[test]
    fn the_policy_is_found_in_each_place_and_ours_comes_first() {
        let ours = own("<cobalt:ha policy='restart' priority='-3'/>");
        let theirs =
            nova(&(spec("hw:x", "1") + &spec(POLICY_SPEC, "evict") + &spec(PRIORITY_SPEC, "5")));
        let cases = [
            (String::new(), None, None),
            (ours.clone(), Some(HaPolicy::Restart), Some(-3)),
            (theirs.clone(), Some(HaPolicy::Evict), Some(5)),
            (format!("{theirs}{ours}"), Some(HaPolicy::Restart), Some(-3)),
            (
                own("<cobalt:ha priority='1'/>") + &theirs,
                Some(HaPolicy::Evict),
                Some(1),
            ),
            (
                own("<cobalt:ha policy=' Notify '/>"),
                Some(HaPolicy::Notify),
                None,
            ),
            // As it is without a prefix, and where the inner element has no namespace.
            (
                format!("<instance xmlns='{NAMESPACE}'><ha policy='evict'/></instance>"),
                Some(HaPolicy::Evict),
                None,
            ),
            (own("<ha policy='evict'/>"), Some(HaPolicy::Evict), None),
            (own(""), None, None),
            (nova(""), None, None),
        ];
        for (text, policy, priority) in cases {
            let (found, warnings) = metadata(&text);
            assert_eq!(
                (found.ha_policy, found.priority),
                (policy, priority),
                "{text}"
            );
            assert!(warnings.is_empty(), "{warnings:?}");
        }
    }

    #[test]
    fn an_element_of_another_namespace_is_not_ours() {
        let (found, _) = metadata(
            "<instance><ha policy='evict'/></instance>\
             <a:instance xmlns:a='https://example.com/1.0'><a:ha policy='evict'/></a:instance>",
        );
        assert_eq!(found.ha_policy, None);
        assert_eq!(found.nova, None);
    }

    #[test]
    fn an_unknown_word_is_a_warning_and_the_next_place_decides() {
        let (found, warnings) = metadata(
            &(own("<cobalt:ha policy='reboot' priority='high'/>")
                + &nova(&spec(POLICY_SPEC, "evict"))),
        );
        assert_eq!(found.ha_policy, Some(HaPolicy::Evict));
        assert_eq!(found.priority, None);
        assert_eq!(
            warnings,
            [
                "\"reboot\" is not an HA policy: write restart, evict, notify",
                "\"high\" is not a priority: write a whole number",
            ]
        );
    }

    #[test]
    fn novas_names_are_found() {
        let (found, _) = metadata(&nova(""));
        let some = |text: &str| Some(text.to_owned());
        let expected = Nova {
            name: some("shop & co"),
            flavor: some("g_k_c6_m24_v2"),
            project_id: some("p1"),
            project_name: some("shop"),
            user_id: some("u1"),
            user_name: some("ann"),
        };
        assert_eq!(found.nova.as_deref(), Some(&expected));
        let (bare, _) = metadata(&format!("<nova:instance xmlns:nova='{NOVA}1.0'/>"));
        assert_eq!(bare.nova.as_deref(), Some(&Nova::default()));
    }
}
