//! What an agent may write in the objects that are its own, field by field.

use std::collections::BTreeSet;

use cobalt_api::conditions::HypervisorCondition;
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use super::fleet::{Fleet, outcome};
use super::page;

#[tokio::test]
async fn an_agent_cannot_write_what_the_operator_says_of_its_hypervisor() {
    let fleet = Fleet::install("status").await;
    let [a, _] = &fleet.nodes;
    let agent = fleet.agent(a).await;
    let api = fleet.api(&agent, "hypervisors");
    let wanted = |writer: &str| match writer {
        "agent" => "yes",
        "operator" => "own-status",
        other => panic!("no writer {other}"),
    };
    let crd = fleet
        .kubectl(&["get", "crd/hypervisors.kvm.cloud.sap", "-o=json"], "")
        .unwrap();
    let crd: Value = serde_json::from_str(&crd).unwrap();
    let status = &crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["status"];
    let properties = status["properties"].as_object().unwrap();

    // The page has a row for each field and each condition.
    let fields = page::table("status-fields");
    let named: BTreeSet<&str> = fields.iter().map(|row| row[0].as_str()).collect();
    let mut there: BTreeSet<&str> = properties.keys().map(String::as_str).collect();
    there.remove("conditions");
    assert_eq!(named, there);
    let conditions = page::table("status-conditions");
    let named: BTreeSet<&str> = conditions.iter().map(|row| row[0].as_str()).collect();
    let there = HypervisorCondition::ALL.iter().map(|each| each.as_str());
    assert_eq!(named, there.collect());

    // A field that the operator has not written yet, one that it has, and its removal.
    let merge = async |status: Value| {
        let patch = Patch::Merge(json!({ "status": status }));
        let params = PatchParams {
            dry_run: true,
            ..PatchParams::default()
        };
        outcome(api.patch_status(a, &params, &patch).await)
    };
    let mut wrong = Vec::new();
    let mut said = json!({ "numInstances": 0 });
    for row in &fields {
        let value = sample(&properties[&row[0]]);
        let seen = merge(json!({ &row[0]: value })).await;
        if seen != wanted(&row[1]) {
            wrong.push(format!("{}: {seen}", row[0]));
        }
        if row[1] == "operator" {
            said[&row[0]] = value;
        }
    }
    said["conditions"] = conditions
        .iter()
        .filter(|row| row[1] == "operator")
        .map(|row| condition(&row[0], "False"))
        .collect();
    let by_operator = json!({
        "apiVersion": "kvm.cloud.sap/v1", "kind": "Hypervisor", "metadata": { "name": a },
        "status": said,
    });
    let admin = fleet.api(&fleet.admin, "hypervisors");
    let params = PatchParams::apply("cobaltcore/hypervisor-operator").force();
    let patch = Patch::Apply(&by_operator);
    admin.patch_status(a, &params, &patch).await.unwrap();
    for row in fields.iter().filter(|row| row[1] == "operator") {
        let seen = merge(json!({ &row[0]: null })).await;
        if seen != "own-status" {
            wrong.push(format!("{}, removed: {seen}", row[0]));
        }
    }

    // A condition that is new or changed, beside the agent's own.
    let apply = async |manager: &str, status: Value| {
        let object = json!({
            "apiVersion": "kvm.cloud.sap/v1", "kind": "Hypervisor", "metadata": { "name": a },
            "status": status,
        });
        let params = PatchParams {
            dry_run: true,
            ..PatchParams::apply(manager).force()
        };
        outcome(api.patch_status(a, &params, &Patch::Apply(object)).await)
    };
    let unknown = vec!["Whatever".to_owned(), "operator".to_owned()];
    for row in conditions.iter().chain([&unknown]) {
        let mut all = vec![condition(&row[0], "True")];
        if row[0] != "LibVirtConnection" {
            all.push(condition("LibVirtConnection", "True"));
        }
        let seen = apply("cobaltcore/node-agent", json!({ "conditions": all })).await;
        if seen != wanted(&row[1]) {
            wrong.push(format!("condition {}: {seen}", row[0]));
        }
    }
    let none = merge(json!({ "conditions": [] })).await;
    if none != "own-status" {
        wrong.push(format!("no conditions: {none}"));
    }

    // Whoever owns the operator's fields beside it keeps it from removing them.
    let same = json!({ "phase": said["phase"], "evicted": said["evicted"] });
    let ready = json!({ "conditions": [condition("Ready", "False")] });
    for (manager, status) in [
        ("cobaltcore/node-agent", &same),
        ("cobaltcore/node-agent", &ready),
        ("somebody", &same),
        ("somebody", &ready),
    ] {
        let seen = apply(manager, status.clone()).await;
        if seen != "own-status" {
            wrong.push(format!("{manager} owns {status}: {seen}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    // The refusal names the field and what to do.
    let patch = Patch::Merge(json!({ "status": { "hypervisorId": "other" } }));
    let refused = api.patch_status(a, &PatchParams::default(), &patch).await;
    let refused = refused.unwrap_err().to_string();
    assert!(
        refused.contains("status.hypervisorId") && refused.contains("leave it out"),
        "{refused}"
    );
}

fn condition(kind: &str, status: &str) -> Value {
    json!({
        "type": kind, "status": status, "reason": "Test", "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    })
}

/// A value that a schema accepts.
fn sample(schema: &Value) -> Value {
    if let Some(first) = schema["enum"].get(0) {
        return first.clone();
    }
    if schema["x-kubernetes-int-or-string"] == true {
        return 1.into();
    }
    match schema["type"].as_str() {
        Some("string") if schema["format"] == "date-time" => "2026-01-01T00:00:00Z".into(),
        Some("string") => "x".into(),
        Some("integer" | "number") => 1.into(),
        Some("boolean") => true.into(),
        Some("array") => json!([sample(&schema["items"])]),
        Some("object") if schema["additionalProperties"].is_object() => {
            json!({ "cpu": sample(&schema["additionalProperties"]) })
        }
        Some("object") => {
            let required = schema["required"].as_array();
            let names = required.into_iter().flatten().filter_map(Value::as_str);
            names
                .map(|name| (name.to_owned(), sample(&schema["properties"][name])))
                .collect()
        }
        other => panic!("no value of type {other:?}"),
    }
}

#[tokio::test]
async fn an_agents_certificate_is_bound_to_its_node_field_by_field() {
    let fleet = Fleet::install("fields").await;
    let agent = fleet.agent(&fleet.nodes[0]).await;
    fleet.check_fields(&agent, &["certificates"]).await;
}

#[tokio::test]
async fn an_agents_evictions_are_small_and_never_in_the_way_of_a_drain() {
    let fleet = Fleet::install("drains").await;
    let [a, b] = &fleet.nodes;
    let agent = fleet.agent(a).await;
    let kinds = ["evictions", "instance-evictions", "drains"];
    fleet.check_fields(&agent, &kinds).await;
    // The refusal tells what to do; a name that the server makes is judged as well.
    let mut object = fleet.object("evictions", a);
    object.metadata.name = None;
    object.metadata.generate_name = Some(format!("{b}-"));
    let post = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    let api = fleet.api(&agent, "evictions");
    let refused = api.create(&post, &object).await.unwrap_err().to_string();
    assert!(refused.contains(&format!("named {a}-BOOT")), "{refused}");
}

#[tokio::test]
async fn an_agent_reports_on_its_own_hypervisor_only_and_in_its_own_name() {
    let fleet = Fleet::install("reports").await;
    let agent = fleet.agent(&fleet.nodes[0]).await;
    fleet.check_fields(&agent, &["events"]).await;
    fleet.grant_everything().await;
    fleet.check_fields(&agent, &["core-events"]).await;
}

#[tokio::test]
async fn tokens_leases_and_migrations_of_an_agent_are_of_its_node_and_for_a_while() {
    let fleet = Fleet::install("tokens").await;
    let agent = fleet.agent(&fleet.nodes[0]).await;
    let kinds = ["tokens", "leases", "migrations", "foreign-migrations"];
    fleet.check_fields(&agent, &kinds).await;
}

#[test]
fn the_page_has_a_line_for_each_rule_of_the_policy() {
    let policy = crate::chart::repository("charts/node-agent/templates/policy.yaml");
    let policy = std::fs::read_to_string(policy).unwrap();
    let words = policy.split(|c: char| !c.is_ascii_lowercase() && c != '-' && c != ':');
    let rules: BTreeSet<&str> = words
        .filter_map(|word| word.strip_suffix(':'))
        .filter(|word| word.starts_with("own-") || word.starts_with("no-"))
        .collect();
    assert!(rules.len() > 8, "{rules:?}");
    let mut tried: BTreeSet<String> = BTreeSet::new();
    for table in ["node-agent", "node-agent-fields"] {
        tried.extend(page::table(table).into_iter().flatten());
    }
    // Tried by the test of the status.
    tried.insert("own-status".to_owned());
    let never: Vec<_> = rules
        .iter()
        .filter(|rule| !tried.contains(**rule))
        .collect();
    assert!(never.is_empty(), "no line of {never:?}");
}
