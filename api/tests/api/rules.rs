//! What the API server accepts and what it refuses, and in which words.
//!
//! A case changes one object: the object of a fixture plus a few edits. `Limit` rows have one value
//! that is accepted and one that is refused; `Case` rows are rules over several fields or over time.
//! A guard walks the generated definitions and fails for a rule or a limit that no row refuses.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Result;
use kube::{
    Client,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};

use crate::{
    schema,
    support::{api, dynamic, fixture, plural, server, unique},
};

const HYPERVISOR: &str = "hypervisor-agent.yaml";
const HYPERVISOR_ADDED: &str = "hypervisor-added.yaml";
const EVICTION: &str = "eviction-operator.yaml";
const EVICTION_ADDED: &str = "eviction-added.yaml";
const MIGRATION: &str = "migration-agent.yaml";
const MIGRATION_ADDED: &str = "migration-added.yaml";
const OVSNODE: &str = "ovsnode.yaml";

/// A limit of the schema at one place of an object.
struct Limit {
    fixture: &'static str,
    /// Where, in the notation of [`schema::Node::path`].
    path: String,
    /// The keyword, as [`schema::Node::limits`] names it.
    keyword: &'static str,
    /// A value that is just accepted.
    good: Value,
    /// A value that is just refused. Null removes the field.
    bad: Value,
    /// What the refusal says.
    message: String,
}

/// Edits of an object: the place and the new value, null to remove.
type Edits = Vec<(&'static str, Value)>;

/// A rule over several fields, or over a change.
struct Case {
    name: &'static str,
    fixture: &'static str,
    /// The object as it is stored. `None`: the object is new.
    before: Option<Edits>,
    /// The object as it is sent, relative to the fixture.
    after: Edits,
    /// What the refusal says; `None` if it is accepted.
    refusal: Option<&'static str>,
}

fn limit(
    fixture: &'static str,
    path: &str,
    keyword: &'static str,
    good: Value,
    bad: Value,
    message: &str,
) -> Limit {
    Limit {
        fixture,
        path: path.to_owned(),
        keyword,
        good,
        bad,
        message: message.to_owned(),
    }
}

fn text(length: usize) -> Value {
    Value::String("x".repeat(length))
}

/// A string field that has to have a character.
fn min_length(fixture: &'static str, path: &str) -> Limit {
    let message = "should be at least 1 chars long";
    limit(fixture, path, "minLength", json!("x"), json!(""), message)
}

fn max_length(fixture: &'static str, path: &str, length: usize) -> Limit {
    let message = "Too long: may not be more than";
    limit(
        fixture,
        path,
        "maxLength",
        text(length),
        text(length + 1),
        message,
    )
}

fn minimum(fixture: &'static str, path: &str, least: i64) -> Limit {
    let message = format!("should be greater than or equal to {least}");
    limit(
        fixture,
        path,
        "minimum",
        json!(least),
        json!(least - 1),
        &message,
    )
}

fn maximum(fixture: &'static str, path: &str, most: i64) -> Limit {
    let message = format!("should be less than or equal to {most}");
    limit(
        fixture,
        path,
        "maximum",
        json!(most),
        json!(most + 1),
        &message,
    )
}

fn one_of(fixture: &'static str, path: &str, good: &str) -> Limit {
    limit(
        fixture,
        path,
        "enum",
        json!(good),
        json!("Nonsense"),
        "Unsupported value: \"Nonsense\"",
    )
}

fn required(fixture: &'static str, path: &str, good: Value) -> Limit {
    limit(
        fixture,
        path,
        "required",
        good,
        Value::Null,
        "Required value",
    )
}

fn quantity(path: &str) -> Limit {
    limit(
        HYPERVISOR,
        path,
        "pattern",
        json!("1.5Gi"),
        json!("lots"),
        "should match",
    )
}

/// A list with two entries that have the same key.
fn duplicate(fixture: &'static str, path: &str, one: Value, other: Value) -> Limit {
    let different = Value::Array(vec![one.clone(), other]);
    let twice = Value::Array(vec![one.clone(), one]);
    limit(
        fixture,
        path,
        "duplicate",
        different,
        twice,
        "Duplicate value",
    )
}

/// A list of `count` entries is accepted, one more is refused.
fn max_items(fixture: &'static str, path: &str, count: usize, entry: fn(usize) -> Value) -> Limit {
    let list = |count: usize| Value::Array((0..count).map(entry).collect());
    let message = format!("must have at most {count} items");
    limit(
        fixture,
        path,
        "maxItems",
        list(count),
        list(count + 1),
        &message,
    )
}

fn uuid(number: usize) -> Value {
    json!(format!("00000000-0000-0000-0000-{number:012}"))
}

#[allow(clippy::too_many_lines, reason = "it is a table")]
fn limits() -> Vec<Limit> {
    const UUID: &str = "0b8e7d5c-3f1a-4e2b-9c6d-7a8b9c0d1e2f";
    let now = || json!("2026-11-02T08:00:00Z");
    let mut rows = vec![
        // Hypervisor: as deployed.
        limit(
            HYPERVISOR,
            "spec.maintenance",
            "enum",
            json!("auto"),
            json!("weekend"),
            "Unsupported value: \"weekend\": supported values: \"\", \"manual\", \"auto\", \"ha\", \
             \"termination\"",
        ),
        min_length(HYPERVISOR, "spec.groups[].trait.name"),
        required(HYPERVISOR, "spec.groups[].trait.name", json!("x")),
        limit(
            HYPERVISOR,
            "spec.bookings[].consumer.uuid",
            "pattern",
            json!(UUID),
            json!("7"),
            "should match",
        ),
        required(HYPERVISOR, "spec.bookings[].consumer.uuid", json!(UUID)),
        limit(
            HYPERVISOR,
            "spec.bookings[].consumer.resources",
            "minProperties",
            json!({ "cpu": 1 }),
            json!({}),
            "should have at least 1 properties",
        ),
        required(
            HYPERVISOR,
            "spec.bookings[].consumer.resources",
            json!({ "cpu": "1" }),
        ),
        quantity("spec.bookings[].consumer.resources.*"),
        required(HYPERVISOR, "status.instances[].id", json!("x")),
        required(HYPERVISOR, "status.instances[].name", json!("x")),
        required(HYPERVISOR, "status.instances[].active", json!(false)),
        required(HYPERVISOR, "status.cells[].cellID", json!(7)),
        required(HYPERVISOR, "status.aggregates[].name", json!("x")),
        required(HYPERVISOR, "status.aggregates[].uuid", json!("x")),
        quantity("status.capabilities.memory"),
        quantity("status.capabilities.cpus"),
        quantity("status.allocation.*"),
        quantity("status.capacity.*"),
        quantity("status.effectiveCapacity.*"),
        quantity("status.cells[].allocation.*"),
        quantity("status.cells[].capacity.*"),
        quantity("status.cells[].effectiveCapacity.*"),
        // Hypervisor: added.
        one_of(HYPERVISOR_ADDED, "spec.haPolicy", "notify"),
        one_of(HYPERVISOR_ADDED, "status.phase", "Aborted"),
        one_of(HYPERVISOR_ADDED, "status.checks[].result", "Skipped"),
        required(HYPERVISOR_ADDED, "status.checks[].result", json!("Passed")),
        min_length(HYPERVISOR_ADDED, "status.checks[].name"),
        max_length(HYPERVISOR, "spec.maintenanceReason", 2048),
        max_length(HYPERVISOR_ADDED, "status.checks[].name", 63),
        required(HYPERVISOR_ADDED, "status.checks[].name", json!("x")),
        max_length(HYPERVISOR_ADDED, "status.checks[].message", 2048),
        max_length(HYPERVISOR_ADDED, "status.instances[].state", 32),
        max_length(HYPERVISOR_ADDED, "status.instances[].reason", 32),
        max_length(HYPERVISOR_ADDED, "status.updateStatus.version", 128),
        max_length(HYPERVISOR_ADDED, "status.updateStatus.error", 2048),
        max_length(HYPERVISOR_ADDED, "status.updateStatus.bootID", 64),
        duplicate(
            HYPERVISOR_ADDED,
            "status.checks",
            json!({ "name": "a", "result": "Passed" }),
            json!({ "name": "b", "result": "Passed" }),
        ),
        max_items(
            HYPERVISOR_ADDED,
            "status.checks",
            64,
            |number| json!({ "name": format!("check-{number}"), "result": "Passed" }),
        ),
        // Eviction: as deployed.
        min_length(EVICTION, "spec.hypervisor"),
        required(EVICTION, "spec.hypervisor", json!("node")),
        min_length(EVICTION, "spec.reason"),
        required(EVICTION, "spec.reason", json!("why")),
        required(
            EVICTION,
            "spec",
            json!({ "hypervisor": "node", "reason": "why" }),
        ),
        // Eviction: added.
        one_of(EVICTION_ADDED, "spec.strategy", "Evacuate"),
        minimum(EVICTION_ADDED, "spec.parallelism", 1),
        maximum(EVICTION_ADDED, "spec.parallelism", 64),
        limit(
            EVICTION_ADDED,
            "spec.deadline",
            "maxLength",
            json!("0h0h0h0h0h0h0h0h0h0h0h0h0h000m1s"),
            json!("0h0h0h0h0h0h0h0h0h0h0h0h0h0000m1s"),
            "may not be more than",
        ),
        limit(
            EVICTION_ADDED,
            "spec.instances[]",
            "maxLength",
            uuid(1),
            json!("00000000-0000-0000-0000-0000000000012"),
            "may not be more than",
        ),
        duplicate(EVICTION_ADDED, "spec.instances", uuid(1), uuid(2)),
        max_items(EVICTION_ADDED, "spec.instances", 1024, uuid),
        one_of(EVICTION_ADDED, "status.outcome", "TimedOut"),
        one_of(EVICTION_ADDED, "status.instances[].state", "Gone"),
        required(EVICTION_ADDED, "status.instances[].state", json!("Pending")),
        min_length(EVICTION_ADDED, "status.instances[].id"),
        max_length(EVICTION_ADDED, "spec.reason", 4096),
        max_length(EVICTION_ADDED, "status.instances[].id", 36),
        required(EVICTION_ADDED, "status.instances[].id", json!("x")),
        max_length(EVICTION_ADDED, "status.instances[].name", 255),
        max_length(EVICTION_ADDED, "status.instances[].from", 255),
        max_length(EVICTION_ADDED, "status.instances[].to", 255),
        max_length(EVICTION_ADDED, "status.instances[].status", 64),
        minimum(EVICTION_ADDED, "status.instances[].memoryMb", 0),
        one_of(EVICTION_ADDED, "status.instances[].method", "Offload"),
        max_items(EVICTION_ADDED, "status.instances[].avoid", 64, |_| {
            json!("x")
        }),
        minimum(EVICTION_ADDED, "status.instances[].preflight.hosts", 0),
        minimum(EVICTION_ADDED, "status.instances[].attempt", 0),
        max_length(EVICTION_ADDED, "status.instances[].requestId", 64),
        minimum(EVICTION_ADDED, "status.instances[].progress", 0),
        maximum(EVICTION_ADDED, "status.instances[].progress", 100),
        max_length(EVICTION_ADDED, "status.instances[].error", 2048),
        one_of(
            EVICTION_ADDED,
            "status.instances[].preflight.verdict",
            "Unknown",
        ),
        required(
            EVICTION_ADDED,
            "status.instances[].preflight.verdict",
            json!("Movable"),
        ),
        limit(
            EVICTION_ADDED,
            "status.instances[].preflight.reasons[].reason",
            "minLength",
            json!("Locked"),
            json!(""),
            "should be at least 1 chars long",
        ),
        max_length(
            EVICTION_ADDED,
            "status.instances[].preflight.reasons[].reason",
            64,
        ),
        required(
            EVICTION_ADDED,
            "status.instances[].preflight.reasons[].reason",
            json!("Locked"),
        ),
        max_length(
            EVICTION_ADDED,
            "status.instances[].preflight.reasons[].message",
            1024,
        ),
        max_items(
            EVICTION_ADDED,
            "status.instances[].preflight.reasons",
            16,
            |_| json!({ "reason": "Locked" }),
        ),
        duplicate(
            EVICTION_ADDED,
            "status.instances",
            json!({ "id": "a", "state": "Moved" }),
            json!({ "id": "b", "state": "Moved" }),
        ),
        max_items(
            EVICTION_ADDED,
            "status.instances",
            1024,
            |number| json!({ "id": uuid(number), "state": "Moved" }),
        ),
        // Migration: as deployed.
        required(MIGRATION, "status.started", now()),
        // Migration: added.
        one_of(MIGRATION_ADDED, "status.result", "Cancelled"),
        max_length(MIGRATION_ADDED, "status.instance", 36),
        one_of(MIGRATION_ADDED, "status.ends[].result", "Failed"),
        required(MIGRATION_ADDED, "status.ends[].node", json!("node")),
        min_length(MIGRATION_ADDED, "status.ends[].node"),
        max_length(MIGRATION_ADDED, "status.ends[].node", 253),
        max_length(MIGRATION_ADDED, "status.ends[].error", 2048),
        required(MIGRATION_ADDED, "status.ends[].role", json!("Source")),
        one_of(MIGRATION_ADDED, "status.ends[].role", "Source"),
        duplicate(
            MIGRATION_ADDED,
            "status.ends",
            json!({ "role": "Source", "node": "a" }),
            json!({ "role": "Destination", "node": "a" }),
        ),
        limit(
            MIGRATION_ADDED,
            "status.ends",
            "maxItems",
            json!([{ "role": "Source", "node": "a" }]),
            json!([
                { "role": "Source", "node": "a" },
                { "role": "Destination", "node": "b" },
                { "role": "Destination", "node": "c" },
            ]),
            "must have at most 2 items",
        ),
        maximum(MIGRATION_ADDED, "status.ends[].stats.throttlePercent", 100),
        // OVSNode.
        required(OVSNODE, "spec", json!({ "nodeRef": { "name": "node" } })),
        required(OVSNODE, "spec.nodeRef", json!({ "name": "node" })),
        required(OVSNODE, "spec.nodeRef.name", json!("node")),
        min_length(OVSNODE, "spec.nodeRef.name"),
        max_length(OVSNODE, "spec.nodeRef.name", 253),
        one_of(OVSNODE, "status.bridges[].status", "Degraded"),
        minimum(OVSNODE, "status.bridges[].ports", 0),
        minimum(OVSNODE, "status.bridges[].flows", 0),
        one_of(OVSNODE, "status.interfaces.physical[].status", "Unknown"),
        minimum(OVSNODE, "status.interfaces.physical[].bitsPerSecond", 0),
        one_of(OVSNODE, "status.interfaces.bonds[].status", "Down"),
        minimum(OVSNODE, "status.interfaces.bonds[].members", 0),
        minimum(OVSNODE, "status.interfaces.bonds[].activeMembers", 0),
        one_of(
            OVSNODE,
            "status.interfaces.bonds[].memberStates[].status",
            "Down",
        ),
        minimum(OVSNODE, "status.flowStats.totalFlows", 0),
        required(OVSNODE, "status.flowStats.flowsPerTable[].table", json!(1)),
        minimum(OVSNODE, "status.flowStats.flowsPerTable[].table", 0),
        maximum(OVSNODE, "status.flowStats.flowsPerTable[].table", 255),
        required(OVSNODE, "status.flowStats.flowsPerTable[].flows", json!(1)),
        minimum(OVSNODE, "status.flowStats.flowsPerTable[].flows", 0),
        duplicate(
            OVSNODE,
            "status.flowStats.flowsPerTable",
            json!({ "table": 1, "flows": 1 }),
            json!({ "table": 2, "flows": 1 }),
        ),
        one_of(OVSNODE, "status.issues[].severity", "Critical"),
        required(OVSNODE, "status.issues[].severity", json!("Info")),
        min_length(OVSNODE, "status.issues[].message"),
        max_length(OVSNODE, "status.issues[].message", 2048),
        required(OVSNODE, "status.issues[].message", json!("x")),
        max_length(OVSNODE, "status.issues[].kind", 64),
        max_length(OVSNODE, "status.issues[].object", 253),
        max_length(OVSNODE, "status.issues[].remedy", 2048),
        max_items(
            OVSNODE,
            "status.issues",
            256,
            |_| json!({ "severity": "Info", "message": "x" }),
        ),
        required(OVSNODE, "status.diagnostics.url", json!("https://a:1")),
        limit(
            OVSNODE,
            "status.diagnostics.url",
            "pattern",
            json!("https://a:1"),
            json!("http://a:1"),
            "should match",
        ),
        required(
            OVSNODE,
            "status.diagnostics.certificateSha256",
            json!("0".repeat(64)),
        ),
        limit(
            OVSNODE,
            "status.diagnostics.certificateSha256",
            "pattern",
            json!("0".repeat(64)),
            json!("0".repeat(63)),
            "should match",
        ),
    ];
    // Entries of the second kind of group and booking are the second entries of their lists.
    for (path, keyword, good, bad, message) in [
        (
            "spec.groups[1].aggregate.name",
            "minLength",
            json!("x"),
            json!(""),
            "at least 1 chars",
        ),
        (
            "spec.groups[1].aggregate.name",
            "required",
            json!("x"),
            Value::Null,
            "Required value",
        ),
        (
            "spec.groups[1].aggregate.uuid",
            "pattern",
            json!(UUID),
            json!("7"),
            "should match",
        ),
        (
            "spec.groups[1].aggregate.uuid",
            "required",
            json!(UUID),
            Value::Null,
            "Required value",
        ),
        (
            "spec.bookings[1].reservation.name",
            "minLength",
            json!("x"),
            json!(""),
            "at least 1 chars",
        ),
        (
            "spec.bookings[1].reservation.name",
            "required",
            json!("x"),
            Value::Null,
            "Required value",
        ),
        (
            "spec.bookings[1].reservation.resources",
            "minProperties",
            json!({ "cpu": 1 }),
            json!({}),
            "should have at least 1 properties",
        ),
        (
            "spec.bookings[1].reservation.resources",
            "required",
            json!({ "cpu": 1 }),
            Value::Null,
            "Required value",
        ),
        (
            "spec.bookings[1].reservation.resources.*",
            "pattern",
            json!("1k"),
            json!("lots"),
            "should match",
        ),
    ] {
        rows.push(limit(HYPERVISOR, path, keyword, good, bad, message));
    }
    // The conditions are the same everywhere.
    for fixture in [HYPERVISOR, EVICTION, OVSNODE] {
        let entry = |name: &str| {
            json!({
                "type": name, "status": "True", "reason": "R", "message": "",
                "lastTransitionTime": now(),
            })
        };
        let at = |field: &str| format!("status.conditions[].{field}");
        rows.extend([
            duplicate(fixture, "status.conditions", entry("a"), entry("b")),
            required(fixture, &at("type"), json!("Other")),
            max_length(fixture, &at("type"), 316),
            limit(
                fixture,
                &at("type"),
                "pattern",
                json!("a.b/C"),
                json!("a b"),
                "should match",
            ),
            required(fixture, &at("status"), json!("True")),
            one_of(fixture, &at("status"), "Unknown"),
            required(fixture, &at("reason"), json!("R")),
            min_length(fixture, &at("reason")),
            max_length(fixture, &at("reason"), 1024),
            limit(
                fixture,
                &at("reason"),
                "pattern",
                json!("R_1"),
                json!("1R"),
                "should match",
            ),
            required(fixture, &at("message"), json!("")),
            max_length(fixture, &at("message"), 32_768),
            required(fixture, &at("lastTransitionTime"), now()),
            minimum(fixture, &at("observedGeneration"), 0),
        ]);
    }
    for fixture in [HYPERVISOR_ADDED, EVICTION_ADDED] {
        rows.extend([
            required(fixture, "status.waitingFor.reason", json!("R")),
            min_length(fixture, "status.waitingFor.reason"),
            max_length(fixture, "status.waitingFor.reason", 128),
            max_length(fixture, "status.waitingFor.message", 1024),
            required(fixture, "status.waitingFor.since", now()),
        ]);
    }
    for number in [
        "elapsedMillis",
        "remainingMillis",
        "downtimeMillis",
        "setupMillis",
        "dataTotalBytes",
        "dataProcessedBytes",
        "dataRemainingBytes",
        "memTotalBytes",
        "memProcessedBytes",
        "memRemainingBytes",
        "memNormalBytes",
        "memBytesPerSecond",
        "memDirtyPagesPerSecond",
        "memPageSizeBytes",
        "diskTotalBytes",
        "diskProcessedBytes",
        "diskRemainingBytes",
        "diskBytesPerSecond",
        "throttlePercent",
    ] {
        rows.push(minimum(
            MIGRATION_ADDED,
            &format!("status.ends[].stats.{number}"),
            0,
        ));
    }
    for number in [
        "packetsReceived",
        "packetsSent",
        "bytesReceived",
        "bytesSent",
        "drops",
        "errors",
    ] {
        rows.push(minimum(OVSNODE, &format!("status.metrics.{number}"), 0));
    }
    for list in [
        "status.bridges",
        "status.interfaces.physical",
        "status.interfaces.bonds",
        "status.interfaces.bonds[].memberStates",
    ] {
        let name = format!("{list}[].name");
        rows.extend([
            duplicate(
                OVSNODE,
                list,
                json!({ "name": "a" }),
                json!({ "name": "b" }),
            ),
            required(OVSNODE, &name, json!("x")),
            min_length(OVSNODE, &name),
        ]);
    }
    rows
}

#[allow(clippy::too_many_lines, reason = "it is a table")]
fn cases() -> Vec<Case> {
    const FROZEN: &str = "the spec is frozen while maintenance is 'termination': leave it as it \
        is, or set maintenance to 'ha'";
    const REASON: &str = "set maintenanceReason to say why, because maintenance is 'manual'";
    const FACTOR: &str = "overcommit is a factor of at least 1.0: raise it, or remove the resource \
        to give it out once";
    const GROUP: &str =
        "set exactly one of trait and aggregate; write a second entry for the other one";
    const BOOKING: &str =
        "set exactly one of consumer and reservation; write a second entry for the other one";
    const HOST: &str = "hypervisor cannot change: create another Eviction for the other host";
    const STRATEGY: &str = "strategy cannot change: cancel this Eviction and create another one";
    const INSTANCES: &str = "instances cannot change: cancel this Eviction and create another one";
    const DRY_RUN: &str = "dryRun cannot change: create another Eviction";
    const CANCEL: &str = "cancel cannot be taken back: create another Eviction";
    const SERVER: &str = "instances are listed by server id: write the id that `openstack server \
        list` shows, a UUID in lower case";
    const DEADLINE: &str = "deadline is a duration from 1s to 720h: write it like 90m or 1h30m";
    const NODE: &str =
        "nodeRef cannot change: delete this OVSNode; the agent of the other node creates its own";

    let new = |name, fixture, after, refusal| Case {
        name,
        fixture,
        before: None,
        after,
        refusal,
    };
    let change = |name, fixture, before, after, refusal| Case {
        name,
        fixture,
        before: Some(before),
        after,
        refusal,
    };
    let mode = |mode: &str| ("spec.maintenance", json!(mode));
    let mut cases = vec![
        // Maintenance.
        new(
            "manual with a reason",
            HYPERVISOR,
            vec![mode("manual")],
            None,
        ),
        new(
            "manual without a reason",
            HYPERVISOR,
            vec![mode("manual"), ("spec.maintenanceReason", Value::Null)],
            Some(REASON),
        ),
        new(
            "manual with an empty reason",
            HYPERVISOR,
            vec![mode("manual"), ("spec.maintenanceReason", json!(""))],
            Some(REASON),
        ),
        new(
            "auto without a reason",
            HYPERVISOR,
            vec![mode("auto"), ("spec.maintenanceReason", Value::Null)],
            None,
        ),
        new(
            "no maintenance",
            HYPERVISOR,
            vec![("spec.maintenance", Value::Null)],
            None,
        ),
        change(
            "from manual to none",
            HYPERVISOR,
            vec![mode("manual")],
            vec![mode("")],
            None,
        ),
        change(
            "into termination",
            HYPERVISOR,
            vec![mode("auto")],
            vec![mode("termination"), ("spec.reboot", json!(false))],
            None,
        ),
        change(
            "termination, nothing changes",
            HYPERVISOR,
            vec![mode("termination")],
            vec![mode("termination")],
            None,
        ),
        change(
            "termination, a field changes",
            HYPERVISOR,
            vec![mode("termination")],
            vec![mode("termination"), ("spec.reboot", json!(false))],
            Some(FROZEN),
        ),
        change(
            "termination, an added field changes",
            HYPERVISOR,
            vec![mode("termination")],
            vec![mode("termination"), ("spec.haPolicy", json!("notify"))],
            Some(FROZEN),
        ),
        change(
            "termination is taken back",
            HYPERVISOR,
            vec![mode("termination")],
            vec![mode("")],
            Some(FROZEN),
        ),
        change(
            "termination is removed",
            HYPERVISOR,
            vec![mode("termination")],
            vec![("spec.maintenance", Value::Null)],
            Some(FROZEN),
        ),
        change(
            "termination becomes ha, and a field changes with it",
            HYPERVISOR,
            vec![mode("termination")],
            vec![mode("ha"), ("spec.reboot", json!(false))],
            None,
        ),
        change(
            "ha ends",
            HYPERVISOR,
            vec![mode("ha")],
            vec![mode("")],
            None,
        ),
        // Overcommit.
        new(
            "overcommit of one",
            HYPERVISOR,
            vec![("spec.overcommit", json!({ "cpu": 1 }))],
            None,
        ),
        new(
            "overcommit below one",
            HYPERVISOR,
            vec![("spec.overcommit", json!({ "cpu": 2, "memory": 0.99 }))],
            Some(FACTOR),
        ),
        // Unions.
        new(
            "a group of neither kind",
            HYPERVISOR,
            vec![("spec.groups", json!([{}]))],
            Some(GROUP),
        ),
        new(
            "a group of both kinds",
            HYPERVISOR,
            vec![(
                "spec.groups",
                json!([{
                    "trait": { "name": "T" },
                    "aggregate": { "name": "a", "uuid": "0b8e7d5c-3f1a-4e2b-9c6d-7a8b9c0d1e2f" },
                }]),
            )],
            Some(GROUP),
        ),
        new(
            "the same group twice",
            HYPERVISOR,
            vec![(
                "spec.groups",
                json!([{ "trait": { "name": "T" } }, { "trait": { "name": "T" } }]),
            )],
            None,
        ),
        new(
            "a booking of neither kind",
            HYPERVISOR,
            vec![("spec.bookings", json!([{}]))],
            Some(BOOKING),
        ),
        // Eviction.
        change(
            "another reason",
            EVICTION,
            vec![],
            vec![("spec.reason", json!("other"))],
            None,
        ),
        change(
            "another host",
            EVICTION,
            vec![],
            vec![("spec.hypervisor", json!("other"))],
            Some(HOST),
        ),
        change(
            "the default strategy is spelled out",
            EVICTION,
            vec![],
            vec![("spec.strategy", json!("LiveMigrate"))],
            None,
        ),
        change(
            "another strategy",
            EVICTION,
            vec![],
            vec![("spec.strategy", json!("Evacuate"))],
            Some(STRATEGY),
        ),
        change(
            "a strategy is removed",
            EVICTION,
            vec![("spec.strategy", json!("Evacuate"))],
            vec![],
            Some(STRATEGY),
        ),
        change(
            "no instances are listed",
            EVICTION,
            vec![],
            vec![("spec.instances", json!([]))],
            None,
        ),
        change(
            "the same instances in another order",
            EVICTION,
            vec![("spec.instances", json!([uuid(1), uuid(2)]))],
            vec![("spec.instances", json!([uuid(2), uuid(1)]))],
            None,
        ),
        change(
            "instances are added",
            EVICTION,
            vec![],
            vec![("spec.instances", json!([uuid(1)]))],
            Some(INSTANCES),
        ),
        change(
            "instances are removed",
            EVICTION,
            vec![("spec.instances", json!([uuid(1)]))],
            vec![],
            Some(INSTANCES),
        ),
        change(
            "no dry run",
            EVICTION,
            vec![],
            vec![("spec.dryRun", json!(false))],
            None,
        ),
        change(
            "a dry run",
            EVICTION,
            vec![],
            vec![("spec.dryRun", json!(true))],
            Some(DRY_RUN),
        ),
        change(
            "a dry run becomes real",
            EVICTION,
            vec![("spec.dryRun", json!(true))],
            vec![("spec.dryRun", json!(false))],
            Some(DRY_RUN),
        ),
        change(
            "cancel",
            EVICTION,
            vec![],
            vec![("spec.cancel", json!(true))],
            None,
        ),
        change(
            "cancel is taken back",
            EVICTION,
            vec![("spec.cancel", json!(true))],
            vec![("spec.cancel", json!(false))],
            Some(CANCEL),
        ),
        change(
            "cancel is removed",
            EVICTION,
            vec![("spec.cancel", json!(true))],
            vec![],
            Some(CANCEL),
        ),
        change(
            "parallelism and deadline may change",
            EVICTION,
            vec![
                ("spec.parallelism", json!(2)),
                ("spec.deadline", json!("1h")),
            ],
            vec![
                ("spec.parallelism", json!(8)),
                ("spec.deadline", json!("2h")),
            ],
            None,
        ),
        new(
            "a server id",
            EVICTION,
            vec![("spec.instances", json!([uuid(1)]))],
            None,
        ),
        new(
            "a server name",
            EVICTION,
            vec![("spec.instances", json!(["web-1"]))],
            Some(SERVER),
        ),
        new(
            "a server id in upper case",
            EVICTION,
            vec![(
                "spec.instances",
                json!(["ABCDEF00-0000-0000-0000-000000000001"]),
            )],
            Some(SERVER),
        ),
        // OVSNode.
        change("the same node", OVSNODE, vec![], vec![], None),
        change(
            "another node",
            OVSNODE,
            vec![],
            vec![("spec.nodeRef.name", json!("other"))],
            Some(NODE),
        ),
    ];
    for deadline in ["1s", "90m", "1h30m", "2.5h", "720h", "1000ms"] {
        cases.push(new(
            "a deadline",
            EVICTION,
            vec![("spec.deadline", json!(deadline))],
            None,
        ));
    }
    for deadline in [
        "",
        "90",
        "soon",
        "1d",
        "-1h",
        "0s",
        "999ms",
        "721h",
        "1 h",
        "1.h",
        "9999999999999h",
    ] {
        let edits = vec![("spec.deadline", json!(deadline))];
        cases.push(new("no deadline", EVICTION, edits, Some(DEADLINE)));
    }
    cases
}

/// Changes the value at a path. An index may stand for `[]`, which means the first entry; `*` means
/// the first value.
fn edit(object: &mut Value, path: &str, new: &Value) {
    let mut steps: Vec<String> = Vec::new();
    for part in path.split('.') {
        match part.split_once('[') {
            Some((name, index)) => {
                let index = index.trim_end_matches(']');
                steps.push(name.to_owned());
                steps.push(if index.is_empty() { "0" } else { index }.to_owned());
            }
            None => steps.push(part.to_owned()),
        }
    }
    let last = steps.pop().expect("a path has a step");
    let mut place = object;
    for step in &steps {
        place = match place {
            Value::Array(items) => &mut items[step.parse::<usize>().expect("an index")],
            other => &mut other[step.as_str()],
        };
    }
    let last = match place {
        Value::Object(fields) if last == "*" => fields
            .keys()
            .next()
            .cloned()
            .unwrap_or_else(|| "cpu".to_owned()),
        _ => last,
    };
    match place {
        Value::Array(items) => items[last.parse::<usize>().expect("an index")] = new.clone(),
        Value::Object(fields) if new.is_null() => {
            fields.remove(&last);
        }
        other => other[last.as_str()] = new.clone(),
    }
}

fn named(fixture_name: &str) -> Value {
    let mut object = fixture(fixture_name).clone();
    object["metadata"] = json!({ "name": unique("rule") });
    object
}

/// Sends an object that is not there yet; nothing is stored.
async fn send_new(client: &Client, object: &Value) -> Result<(), String> {
    let dry_run = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    let api = api(client, plural(object));
    api.create(&dry_run, &dynamic(object))
        .await
        .map(drop)
        .map_err(|error| error.to_string())
}

/// Sends a changed spec of an object that is there; the change is not stored.
async fn send_change(client: &Client, before: &Value, after: &Value) -> Result<(), String> {
    let api = api(client, plural(before));
    let name = before["metadata"]["name"].as_str().expect("a name");
    let stored = api
        .create(&PostParams::default(), &dynamic(before))
        .await
        .map_err(|error| format!("the object before the change: {error}"))?;
    let mut object = serde_json::to_value(&stored).expect("an object");
    object["spec"] = after["spec"].clone();
    let dry_run = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    let result = api.replace(name, &dry_run, &dynamic(&object)).await;
    api.delete(name, &DeleteParams::default())
        .await
        .map_err(|error| error.to_string())?;
    result.map(drop).map_err(|error| error.to_string())
}

/// The places a row refuses: a numbered entry stands for any entry.
fn place(path: &str) -> String {
    path.replace("[1]", "[]")
}

#[tokio::test]
async fn every_limit_accepts_and_refuses() -> Result<()> {
    let (_, client) = server().await?;
    let mut wrong = Vec::new();
    let hosts: BTreeMap<&str, Value> = [
        HYPERVISOR,
        HYPERVISOR_ADDED,
        EVICTION,
        EVICTION_ADDED,
        MIGRATION,
        MIGRATION_ADDED,
        OVSNODE,
    ]
    .into_iter()
    .map(|name| (name, named(name)))
    .collect();
    for object in hosts.values() {
        api(&client, plural(object))
            .create(&PostParams::default(), &dynamic(object))
            .await?;
    }
    for row in limits() {
        for (value, refusal) in [(&row.good, None), (&row.bad, Some(&row.message))] {
            let mut object = hosts[row.fixture].clone();
            edit(&mut object, &row.path, value);
            let result = if row.path.starts_with("status") {
                let name = object["metadata"]["name"]
                    .as_str()
                    .expect("a name")
                    .to_owned();
                // Lists are replaced by a merge patch, and so is what is in them.
                let status = json!({ "status": object["status"] });
                let dry_run = PatchParams {
                    dry_run: true,
                    ..PatchParams::default()
                };
                let api = api(&client, plural(&object));
                api.patch_status(&name, &dry_run, &Patch::Merge(&status))
                    .await
                    .map(drop)
                    .map_err(|error| error.to_string())
            } else {
                object["metadata"]["name"] = json!(unique("rule"));
                send_new(&client, &object).await
            };
            let of = format!("{} {} {}", plural(&object), row.path, row.keyword);
            match (result, refusal) {
                (Ok(()), None) => {}
                (Err(error), None) => wrong.push(format!("{of} refuses a good value: {error}")),
                (Ok(()), Some(_)) => wrong.push(format!("{of} accepts a bad value")),
                (Err(error), Some(message)) => {
                    // The refusal names the field.
                    let field = row.path.rsplit(['.', '*']).find(|part| !part.is_empty());
                    let field = field.expect("a path has a name").split('[').next();
                    let field = field.expect("a name");
                    if !error.contains(message.as_str()) || !error.contains(field) {
                        wrong.push(format!("{of} is refused in other words: {error}"));
                    }
                }
            }
        }
    }
    for object in hosts.values() {
        let name = object["metadata"]["name"].as_str().expect("a name");
        api(&client, plural(object))
            .delete(name, &DeleteParams::default())
            .await?;
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    Ok(())
}

#[tokio::test]
async fn every_rule_accepts_and_refuses() -> Result<()> {
    let (_, client) = server().await?;
    let mut wrong = Vec::new();
    for case in cases() {
        let base = named(case.fixture);
        let edited = |edits: &Edits| {
            let mut object = base.clone();
            for (path, value) in edits {
                edit(&mut object, path, value);
            }
            object
        };
        let after = edited(&case.after);
        let result = match &case.before {
            None => send_new(&client, &after).await,
            Some(before) => send_change(&client, &edited(before), &after).await,
        };
        let name = format!("{} ({:?})", case.name, case.after);
        match (result, case.refusal) {
            (Ok(()), None) => {}
            (Err(error), None) => wrong.push(format!("{name} is refused: {error}")),
            (Ok(()), Some(_)) => wrong.push(format!("{name} is accepted")),
            (Err(error), Some(message)) if error.contains(message) => {}
            (Err(error), Some(_)) => {
                wrong.push(format!("{name} is refused in other words: {error}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    Ok(())
}

#[test]
fn every_rule_and_every_limit_has_a_case() {
    let limits: BTreeSet<(&str, String, &str)> = limits()
        .iter()
        .map(|row| (plural(fixture(row.fixture)), place(&row.path), row.keyword))
        .collect();
    let cases = cases();
    let mut missing = Vec::new();
    for node in schema::nodes() {
        for keyword in node.limits() {
            if !limits.contains(&(node.plural.as_str(), node.path.clone(), keyword.as_str())) {
                missing.push(format!("{} {} {keyword}", node.plural, node.path));
            }
        }
        for message in node.rules() {
            let Some(message) = message else {
                missing.push(format!(
                    "{} {}: a rule without a message",
                    node.plural, node.path
                ));
                continue;
            };
            let of_kind = |case: &&Case| plural(fixture(case.fixture)) == node.plural;
            let refused = cases
                .iter()
                .filter(of_kind)
                .any(|case| case.refusal == Some(message.as_str()));
            if !refused {
                missing.push(format!("{} {}: {message}", node.plural, node.path));
            }
        }
    }
    assert!(
        missing.is_empty(),
        "nothing in rules.rs refuses these:\n{}",
        missing.join("\n")
    );
}

#[test]
fn no_row_is_about_a_limit_that_is_gone() {
    let known: BTreeSet<(&str, String, String)> = schema::nodes()
        .iter()
        .flat_map(|node| {
            let of = |keyword| (node.plural.as_str(), node.path.clone(), keyword);
            node.limits().into_iter().map(of).collect::<Vec<_>>()
        })
        .collect();
    for row in limits() {
        let of = (
            plural(fixture(row.fixture)),
            place(&row.path),
            row.keyword.to_owned(),
        );
        assert!(known.contains(&of), "{of:?}");
    }
}
