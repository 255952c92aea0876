//! Labels, annotations, finalizers, taints, field managers and lease names.

use crate::strings::string_enum;

/// Labels.
pub mod labels {
    /// On a Node: this node is a hypervisor; the value names the driver.
    pub const VIRT_DRIVER: &str = "nova.openstack.cloud.sap/virt-driver";
    /// On a Node: the operator manages the life of this hypervisor.
    pub const LIFECYCLE: &str = "cobaltcore.cloud.sap/node-hypervisor-lifecycle";
    /// Value of [`LIFECYCLE`] that leaves out the onboarding tests.
    pub const LIFECYCLE_SKIP_TESTS: &str = "skip-tests";
    /// On a Node: selects the nodes the agents run on.
    pub const HYPERVISOR_ROLE: &str = "node-role.kubernetes.io/hypervisor";
    /// The host name of a node.
    pub const HOSTNAME: &str = "kubernetes.io/hostname";
    /// The region.
    pub const REGION: &str = "topology.kubernetes.io/region";
    /// The availability zone.
    pub const ZONE: &str = "topology.kubernetes.io/zone";
    /// The building block.
    pub const BUILDING_BLOCK: &str = "kubernetes.metal.cloud.sap/bb";
    /// The cluster of the bare-metal inventory.
    pub const METAL_CLUSTER: &str = "kubernetes.metal.cloud.sap/cluster";
    /// The host in the bare-metal inventory.
    pub const METAL_NAME: &str = "kubernetes.metal.cloud.sap/name";
    /// The kind of host in the bare-metal inventory.
    pub const METAL_TYPE: &str = "kubernetes.metal.cloud.sap/type";
    /// The worker group.
    pub const WORKER_GROUP: &str = "worker.garden.sapcloud.io/group";
    /// The worker pool.
    pub const WORKER_POOL: &str = "worker.gardener.cloud/pool";
    /// On the Deployment and the disruption budget that hold a node; the value names the node.
    pub const MAINTENANCE_CONTROLLER: &str = "cobaltcore-maintenance-controller";
    /// On an object that a component made: which component.
    pub const MANAGED_BY: &str = "app.kubernetes.io/managed-by";
    /// Value of [`MANAGED_BY`] on what the hypervisor operator makes for a node.
    pub const MANAGED_BY_HYPERVISOR_OPERATOR: &str = "cobalt-hypervisor-operator";
    /// On a Pod: the node is not ready for workload before this pod is.
    pub const CRITICAL_COMPONENT: &str = "node.gardener.cloud/critical-component";

    /// On a Migration: the node the instance leaves. Its agent owns the object.
    pub const SOURCE_NODE: &str = "cobaltcore.cloud.sap/source-node";
    /// On a Migration: the UUID of the instance. The agent of the destination finds the object by it.
    pub const INSTANCE: &str = "cobaltcore.cloud.sap/instance";
    /// On a copy of an object in another cluster: the name of the cluster that has the original.
    pub const MIRROR_OF: &str = "cobaltcore.cloud.sap/mirror-of";

    /// Copied from a Node to its Hypervisor, and from there to its Evictions.
    pub const FROM_NODE_TO_HYPERVISOR: &[&str] = &[
        HOSTNAME,
        BUILDING_BLOCK,
        METAL_CLUSTER,
        METAL_NAME,
        METAL_TYPE,
        WORKER_GROUP,
        WORKER_POOL,
        REGION,
        ZONE,
    ];

    /// Copied from a Node to the Pods on it.
    pub const FROM_NODE_TO_POD: &[&str] =
        &[METAL_NAME, METAL_CLUSTER, BUILDING_BLOCK, REGION, ZONE];
}

/// Annotations.
pub mod annotations {
    /// On a Node: aggregates of the host, separated by commas.
    pub const AGGREGATES: &str = "nova.openstack.cloud.sap/aggregates";
    /// On a Node: custom traits of the host, separated by commas.
    pub const CUSTOM_TRAITS: &str = "nova.openstack.cloud.sap/custom-traits";
    /// On a Hypervisor whose onboarding was aborted: begin again. Removed when that has been done.
    pub const RETRY_ONBOARDING: &str = "cobaltcore.cloud.sap/retry-onboarding";
    /// On a Hypervisor: how the host came into service, as the operator recorded it (pending, tested,
    /// untested, adopted, taken-over). While it is pending the operator enables nothing, whatever the
    /// status says: agents can write the status, and not this.
    pub const ONBOARDED: &str = "cobaltcore.cloud.sap/onboarded";
    /// On the heartbeat Lease of a node: why it is not renewed. Removed when it is again.
    pub const NOT_RENEWED_BECAUSE: &str = "cobaltcore.cloud.sap/not-renewed-because";
    /// On an Eviction that only examines: other hosts that shall be drained at the same time, separated by
    /// commas. They count as no place to go to.
    pub const DRAINED_WITH: &str = "cobaltcore.cloud.sap/drained-with";
    /// On an object that the operator made: a digest of all that was applied, so that what is no
    /// longer wanted is noticed, too.
    pub const APPLIED: &str = "cobaltcore.cloud.sap/applied";
}

/// Finalizers.
pub mod finalizers {
    /// On a Hypervisor: the host is registered in Nova or Placement and has to be removed first.
    pub const REGISTERED_HOST: &str = "cobaltcore.cloud.sap/registered-host";
    /// On an Eviction: migrations may be in flight and have to be aborted first.
    pub const EVICTION_IN_FLIGHT: &str = "cobaltcore.cloud.sap/eviction-in-flight";
}

/// Taints.
pub mod taints {
    /// On a Node that is being offboarded, with the effect `NoExecute`: whatever does not tolerate it
    /// leaves. The node agent does: it tells whether instances are left.
    pub const OFFBOARDING: &str = "kvm.cloud.sap/offboarding";
    /// On a new Node, until its critical components are ready.
    pub const CRITICAL_COMPONENTS_NOT_READY: &str =
        "node.gardener.cloud/critical-components-not-ready";
}

/// Conditions of a Node that are not part of Kubernetes.
pub mod node_conditions {
    /// The machine behind the node is being removed.
    pub const TERMINATING: &str = "Terminating";
}

/// Audiences of tokens.
pub mod audiences {
    /// The audience of a token for the diagnostics of one node's Open vSwitch agent. It names the
    /// node, so that a node that was shown a token cannot use it at another one.
    #[must_use]
    pub fn ovs_diagnostics(node: &str) -> String {
        format!("cobalt-ovs-agent.{node}")
    }
}

/// Leases.
pub mod leases {
    /// Leader election of the hypervisor operator. It is the name of the deployed operator, so that
    /// two generations of it never lead at the same time.
    pub const HYPERVISOR_OPERATOR: &str = "4c28796a.cloud.sap";
    /// Namespace of the heartbeat leases of the node agents. The lease has the name of the node.
    pub const NODE_AGENT_NAMESPACE: &str = "cobaltcore-node-lease";
}

string_enum! {
    /// Who owns a field in server-side apply: one name per writing purpose. The same name serves
    /// the object and its status, because Kubernetes keeps the two apart by subresource.
    pub enum FieldManager {
        /// Creates Hypervisors from Nodes and keeps what is derived from the Node.
        Hypervisor => "cobaltcore/hypervisor",
        /// Says what the operator has done with a host: all of it in one write.
        Operator => "cobaltcore/hypervisor-operator",
        /// Holds and releases Nodes.
        NodeLifecycle => "cobaltcore/node-lifecycle",
        /// Asks for certificates.
        Certificate => "cobaltcore/certificate",
        /// Lets the agent of a node read the node's Secrets.
        NodeAccess => "cobaltcore/node-access",
        /// Detects and recovers dead hosts.
        HighAvailability => "cobaltcore/high-availability",
        /// The node agent.
        NodeAgent => "cobaltcore/node-agent",
        /// The node agent of the host that an instance comes to, in the Migration that the other
        /// host's agent owns.
        NodeAgentDestination => "cobaltcore/node-agent-destination",
        /// The Open vSwitch agent.
        OvsAgent => "cobaltcore/ovs-agent",
        /// Copies objects to another cluster.
        Mirror => "cobaltcore/mirror",
        /// Copies labels to Pods.
        LabelsInjector => "cobaltcore/labels-injector",
        /// The command line tool, on behalf of a person.
        Cli => "cobaltcore/cli",
        /// The web console, on behalf of a person.
        Console => "cobaltcore/console",
    }
}
