//! What an agent may write in the objects that are its own, field by field.

use kube::api::PostParams;

use super::fleet::Fleet;

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
