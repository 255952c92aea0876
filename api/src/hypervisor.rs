//! Hypervisor, `kvm.cloud.sap/v1`.
//!
//! Writers of the spec: people, GitOps, the operator (what it derives from the Node), the scheduler.
//! Writers of the status: the node agent (what it reads on the host) and the controllers of the
//! operator (what they have done). Each owns its own fields and its own conditions.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::{
    api::resource::Quantity,
    apis::meta::v1::{Condition, Time},
};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::{schema, strings::string_enum, wait::Wait};

/// Names of resources in the maps from resource to quantity or number.
pub mod resources {
    /// Processors, in cores.
    pub const CPU: &str = "cpu";
    /// Memory, in bytes.
    pub const MEMORY: &str = "memory";
}

/// Quantities by the name of the resource.
pub type Resources = BTreeMap<String, Quantity>;

string_enum! {
    /// Whether, and on whose behalf, a host is taken out of service.
    pub enum Maintenance {
        /// The host is in service.
        Unset => "",
        /// A person took it out; the reason is required.
        Manual => "manual",
        /// Automation took it out.
        Auto => "auto",
        /// It was found dead or dying, and its instances are being recovered.
        Ha => "ha",
        /// Its node goes away for good.
        Termination => "termination",
    }
}

string_enum! {
    /// What happens to an instance that has failed.
    pub enum HaPolicy {
        /// Start it again on the same host.
        Restart => "restart",
        /// Move it to another host.
        Evict => "evict",
        /// Leave it and report it.
        Notify => "notify",
    }
}

string_enum! {
    /// Where a host is in its life.
    pub enum Phase {
        /// The host is known, and nothing has been done.
        Initial => "Initial",
        /// It is being registered and prepared.
        Onboarding => "Onboarding",
        /// Its tests run.
        Testing => "Testing",
        /// The tests have passed, and it is about to take workload.
        Ready => "Ready",
        /// It takes workload.
        Active => "Active",
        /// It is being emptied.
        Evicting => "Evicting",
        /// It is empty and out of service.
        Maintenance => "Maintenance",
        /// It has left Nova and Placement.
        Decommissioned => "Decommissioned",
        /// Onboarding was given up; it can be retried.
        Aborted => "Aborted",
    }
}

string_enum! {
    /// The result of one onboarding check.
    pub enum CheckResult {
        /// Not begun.
        Pending => "Pending",
        /// In progress.
        Running => "Running",
        /// Passed.
        Passed => "Passed",
        /// Failed; the message says how.
        Failed => "Failed",
        /// Left out; the message says why.
        Skipped => "Skipped",
    }
}

/// What is wanted of the host.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "kvm.cloud.sap",
    version = "v1",
    kind = "Hypervisor",
    plural = "hypervisors",
    shortname = "hv",
    status = "HypervisorStatus",
    schema = "disabled",
    derive = "Default",
    derive = "PartialEq",
    doc = "A host that runs virtual machines, one per Kubernetes node.",
    printcolumn(
        name = "Zone",
        type_ = "string",
        json_path = r".metadata.labels.topology\.kubernetes\.io/zone",
        priority = 2
    ),
    printcolumn(
        name = "Building Block",
        type_ = "string",
        json_path = r".metadata.labels.kubernetes\.metal\.cloud\.sap/bb",
        priority = 2
    ),
    printcolumn(
        name = "Group",
        type_ = "string",
        json_path = r".metadata.labels.worker\.garden\.sapcloud\.io/group",
        priority = 2
    ),
    printcolumn(
        name = "Ready",
        type_ = "string",
        json_path = r#".status.conditions[?(@.type=="Ready")].status"#
    ),
    printcolumn(
        name = "State",
        type_ = "string",
        json_path = r#".status.conditions[?(@.type=="Ready")].reason"#
    ),
    printcolumn(
        name = "Taint",
        type_ = "string",
        json_path = r#".status.conditions[?(@.type=="Tainted")].message"#
    ),
    printcolumn(
        name = "Lifecycle",
        type_ = "boolean",
        json_path = ".spec.lifecycleEnabled"
    ),
    printcolumn(
        name = "High Availability",
        type_ = "boolean",
        json_path = ".spec.highAvailability"
    ),
    printcolumn(name = "Skip Tests", type_ = "boolean", json_path = ".spec.skipTests"),
    printcolumn(
        name = "Version",
        type_ = "string",
        json_path = ".status.operatingSystem.prettyVersion"
    ),
    printcolumn(name = "IP", type_ = "string", json_path = ".status.internalIp"),
    printcolumn(
        name = "Instances",
        type_ = "integer",
        json_path = ".status.numInstances"
    ),
    printcolumn(
        name = "Hardware",
        type_ = "string",
        json_path = ".status.operatingSystem.hardwareModel",
        priority = 2
    ),
    printcolumn(
        name = "Kernel",
        type_ = "string",
        json_path = ".status.operatingSystem.kernelRelease",
        priority = 2
    ),
    printcolumn(
        name = "Onboarding",
        type_ = "string",
        json_path = r#".status.conditions[?(@.type=="Onboarding")].reason"#,
        priority = 3
    ),
    printcolumn(
        name = "Service ID",
        type_ = "string",
        json_path = ".status.serviceId",
        priority = 3
    ),
    printcolumn(
        name = "Hypervisor ID",
        type_ = "string",
        json_path = ".status.hypervisorId",
        priority = 3
    ),
    printcolumn(
        name = "Age",
        type_ = "date",
        json_path = ".metadata.creationTimestamp"
    )
)]
#[serde(rename_all = "camelCase")]
#[schemars(transform = schema::rule(
    "!has(oldSelf.maintenance) || oldSelf.maintenance != 'termination' || self == oldSelf || \
     (has(self.maintenance) && self.maintenance == 'ha')",
    "the spec is frozen while maintenance is 'termination': leave it as it is, or set maintenance \
     to 'ha'",
))]
#[schemars(transform = schema::rule(
    "!has(self.maintenance) || self.maintenance != 'manual' || \
     (has(self.maintenanceReason) && self.maintenanceReason.size() > 0)",
    "set maintenanceReason to say why, because maintenance is 'manual'",
))]
pub struct HypervisorSpec {
    /// The operating system version that is wanted. "latest" is the newest one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,

    /// Reboot the host when an update has been installed.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(transform = schema::required, transform = schema::default(false))]
    pub reboot: Option<bool>,

    /// Move all instances away before the host reboots.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(transform = schema::required, transform = schema::default(true))]
    pub evacuate_on_reboot: Option<bool>,

    /// The operator may act on this host: onboard, offboard and keep its traits and aggregates.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(transform = schema::required, transform = schema::default(true))]
    pub lifecycle_enabled: Option<bool>,

    /// Leave out the tests of onboarding.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(transform = schema::required, transform = schema::default(false))]
    pub skip_tests: Option<bool>,

    /// Custom traits the host shall have in Placement.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(transform = schema::required, transform = schema::default(json!([])))]
    pub custom_traits: Option<Vec<String>>,

    /// Names of the Nova aggregates the host shall be in.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(transform = schema::required, transform = schema::default(json!([])))]
    pub aggregates: Option<Vec<String>>,

    /// Traits and aggregates as the scheduler reads them. Each entry is one trait or one aggregate.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<Group>,

    /// Claims on this host's resources: instances, and capacity that is held back. The scheduler
    /// writes them; what really runs is in status.allocation.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub bookings: Vec<Booking>,

    /// Ids of the projects that may have instances here. Empty: all projects.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(transform = schema::required, transform = schema::default(json!([])))]
    pub allowed_projects: Option<Vec<String>>,

    /// Recover the instances when the host fails.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(transform = schema::required, transform = schema::default(true))]
    pub high_availability: Option<bool>,

    /// What happens to an instance on this host that has failed, unless the instance says otherwise.
    /// Unset: the node agent's configuration decides.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ha_policy: Option<HaPolicy>,

    /// The node agent asks cert-manager for a certificate for libvirt.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(transform = schema::required, transform = schema::default(false))]
    pub create_cert_manager_certificate: Option<bool>,

    /// The node agent installs the TLS material of libvirt.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(transform = schema::required, transform = schema::default(true))]
    pub install_certificate: Option<bool>,

    /// Whether, and on whose behalf, the host is taken out of service.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub maintenance: Option<Maintenance>,

    /// Why the host is in maintenance. Required for manual maintenance.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 2048))]
    pub maintenance_reason: Option<String>,

    /// How many times each resource may be given out, by the name of the resource (cpu, memory).
    /// A resource that is not listed is given out once. The result is rounded down.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(transform = schema::rule(
        "self.all(k, self[k] >= 1.0)",
        "overcommit is a factor of at least 1.0: raise it, or remove the resource to give it out once",
    ))]
    pub overcommit: Option<BTreeMap<String, f64>>,
}

impl HypervisorSpec {
    /// [`Self::reboot`], or its default.
    #[must_use]
    pub fn reboot(&self) -> bool {
        self.reboot.unwrap_or(false)
    }

    /// [`Self::evacuate_on_reboot`], or its default.
    #[must_use]
    pub fn evacuate_on_reboot(&self) -> bool {
        self.evacuate_on_reboot.unwrap_or(true)
    }

    /// [`Self::lifecycle_enabled`], or its default.
    #[must_use]
    pub fn lifecycle_enabled(&self) -> bool {
        self.lifecycle_enabled.unwrap_or(true)
    }

    /// [`Self::skip_tests`], or its default.
    #[must_use]
    pub fn skip_tests(&self) -> bool {
        self.skip_tests.unwrap_or(false)
    }

    /// [`Self::custom_traits`], or its default.
    #[must_use]
    pub fn custom_traits(&self) -> &[String] {
        self.custom_traits.as_deref().unwrap_or_default()
    }

    /// [`Self::aggregates`], or its default.
    #[must_use]
    pub fn aggregates(&self) -> &[String] {
        self.aggregates.as_deref().unwrap_or_default()
    }

    /// [`Self::allowed_projects`], or its default.
    #[must_use]
    pub fn allowed_projects(&self) -> &[String] {
        self.allowed_projects.as_deref().unwrap_or_default()
    }

    /// [`Self::high_availability`], or its default.
    #[must_use]
    pub fn high_availability(&self) -> bool {
        self.high_availability.unwrap_or(true)
    }

    /// [`Self::create_cert_manager_certificate`], or its default.
    #[must_use]
    pub fn create_cert_manager_certificate(&self) -> bool {
        self.create_cert_manager_certificate.unwrap_or(false)
    }

    /// [`Self::install_certificate`], or its default.
    #[must_use]
    pub fn install_certificate(&self) -> bool {
        self.install_certificate.unwrap_or(true)
    }

    /// [`Self::maintenance`]; an absent value means that the host is in service.
    #[must_use]
    pub fn maintenance(&self) -> Maintenance {
        self.maintenance.unwrap_or(Maintenance::Unset)
    }
}

/// A trait or an aggregate: exactly one of the two is set.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(transform = schema::rule(
    "has(self.trait) != has(self.aggregate)",
    "set exactly one of trait and aggregate; write a second entry for the other one",
))]
pub struct Group {
    /// A trait.
    #[serde(rename = "trait", skip_serializing_if = "Option::is_none")]
    pub trait_: Option<TraitGroup>,
    /// An aggregate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub aggregate: Option<AggregateGroup>,
}

/// A capability of the host.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TraitGroup {
    /// The name in Placement, for example HW_CPU_X86_AVX2.
    #[schemars(length(min = 1))]
    pub name: String,
}

/// An administrative group of hosts.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct AggregateGroup {
    /// The name in Nova.
    #[schemars(length(min = 1))]
    pub name: String,
    /// The UUID in Nova.
    #[schemars(extend("pattern" = schema::UUID))]
    pub uuid: String,
    /// The metadata in Nova.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metadata: Option<BTreeMap<String, String>>,
}

/// A claim on the host's resources: exactly one of the two is set.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(transform = schema::rule(
    "has(self.consumer) != has(self.reservation)",
    "set exactly one of consumer and reservation; write a second entry for the other one",
))]
pub struct Booking {
    /// Resources that an instance or a migration holds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub consumer: Option<ConsumerBooking>,
    /// Resources that are held back from scheduling.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reservation: Option<ReservationBooking>,
}

/// Resources that a consumer of Placement holds on this host.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ConsumerBooking {
    /// The consumer: the UUID of an instance or of a migration.
    #[schemars(extend("pattern" = schema::UUID))]
    pub uuid: String,
    /// How much of each resource.
    #[schemars(schema_with = "schema::quantities", extend("minProperties" = 1))]
    pub resources: Resources,
    /// The generation that Placement counts for the consumer. Absent for a new one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub consumer_generation: Option<i64>,
    /// What kind of consumer it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub consumer_type: Option<String>,
    /// The project that owns the consumer.
    #[serde(rename = "projectID", skip_serializing_if = "Option::is_none")]
    pub project_id: Option<String>,
    /// The user that owns the consumer.
    #[serde(rename = "userID", skip_serializing_if = "Option::is_none")]
    pub user_id: Option<String>,
}

/// Resources that are held back from scheduling.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ReservationBooking {
    /// What they are held back for.
    #[schemars(length(min = 1))]
    pub name: String,
    /// How much of each resource.
    #[schemars(schema_with = "schema::quantities", extend("minProperties" = 1))]
    pub resources: Resources,
}

/// What is known of the host.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct HypervisorStatus {
    /// Where the host is in its life, in one word.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phase: Option<Phase>,

    /// What the host's next step waits for. Absent when nothing is waited for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waiting_for: Option<Wait>,

    /// The checks of onboarding, one per name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), transform = schema::map_by("name"))]
    pub checks: Vec<Check>,

    /// The version of libvirt.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(transform = schema::default("unknown"))]
    pub lib_virt_version: Option<String>,

    /// The version of the virtual machine monitor behind libvirt.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(transform = schema::default("unknown"))]
    pub hypervisor_version: Option<String>,

    /// The operating system and the hardware under it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub operating_system: Option<OperatingSystem>,

    /// The operating system update.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub update_status: Option<UpdateStatus>,

    /// The virtual machines that libvirt knows, running ones first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub instances: Vec<Instance>,

    /// What libvirt says the host has.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub capabilities: Option<Capabilities>,

    /// What libvirt says a virtual machine can have here.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub domain_capabilities: Option<DomainCapabilities>,

    /// Resources that the virtual machines here hold.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::quantities")]
    pub allocation: Option<Resources>,

    /// Resources that the host has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::quantities")]
    pub capacity: Option<Resources>,

    /// Resources that may be given out: the capacity times spec.overcommit, rounded down.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::quantities")]
    pub effective_capacity: Option<Resources>,

    /// The NUMA cells of the host.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cells: Vec<Cell>,

    /// The number of virtual machines.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(
        schema_with = "schema::integer",
        transform = schema::required,
        transform = schema::default(0)
    )]
    pub num_instances: Option<i64>,

    /// The host's UUID in Nova, which is also its resource provider in Placement.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hypervisor_id: Option<String>,

    /// The UUID of the host's compute service in Nova.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service_id: Option<String>,

    /// The traits the host has in Placement.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub traits: Vec<String>,

    /// The traits that the operator has set. It removes these alone. Absent: those of `traits` that
    /// are custom ones.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub owned_traits: Option<Vec<String>>,

    /// The aggregates, by name, that the operator has put the host into. It removes the host from
    /// these alone. Absent: those of `aggregates`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub owned_aggregates: Option<Vec<String>>,

    /// The aggregates the host is in.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub aggregates: Vec<Aggregate>,

    /// The address of the node inside the cluster.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub internal_ip: Option<String>,

    /// The host is in maintenance and has no instances left.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub evicted: Option<bool>,

    /// Statements about the host, one per type.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::conditions")]
    pub conditions: Vec<Condition>,

    /// Not used.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spec_hash: Option<String>,
}

/// One check of onboarding.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Check {
    /// What is checked.
    #[schemars(length(min = 1, max = 63))]
    pub name: String,
    /// How it went.
    pub result: CheckResult,
    /// Details for people.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 2048))]
    pub message: Option<String>,
    /// When the result became what it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<Time>,
    /// How often it has been tried.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attempt: Option<i32>,
}

/// A virtual machine.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Instance {
    /// The UUID of the server.
    pub id: String,
    /// The name in libvirt.
    pub name: String,
    /// It runs.
    pub active: bool,
    /// Its state in libvirt, in one word: running, paused, shutoff, crashed and so on.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32))]
    pub state: Option<String>,
    /// Why it is in that state, in libvirt's word for it. Absent for the plain cases.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32))]
    pub reason: Option<String>,
}

/// An aggregate that the host is in.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Aggregate {
    /// The name in Nova.
    pub name: String,
    /// The UUID in Nova.
    pub uuid: String,
    /// The metadata in Nova.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metadata: Option<BTreeMap<String, String>>,
}

/// An operating system update.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct UpdateStatus {
    /// An update is being installed.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(transform = schema::required, transform = schema::default(false))]
    pub in_progress: Option<bool>,
    /// The version that was installed last.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(transform = schema::default("unknown"))]
    pub installed: Option<String>,
    /// How many tries are left.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(
        schema_with = "schema::integer",
        transform = schema::required,
        transform = schema::default(3)
    )]
    pub retry: Option<i64>,
    /// The version that the tries are for.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 128))]
    pub version: Option<String>,
    /// Why the last try failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 2048))]
    pub error: Option<String>,
    /// The boot of the host in which the version was installed. A later boot shows whether it runs.
    #[serde(rename = "bootID", skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub boot_id: Option<String>,
}

/// The operating system and the hardware under it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct OperatingSystem {
    /// The version.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// The variant or edition.
    #[serde(rename = "variantID", skip_serializing_if = "Option::is_none")]
    pub variant_id: Option<String>,
    /// The version for people.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pretty_version: Option<String>,
    /// The name of the kernel.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kernel_name: Option<String>,
    /// The release of the kernel.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kernel_release: Option<String>,
    /// The build of the kernel.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kernel_version: Option<String>,
    /// The parameters the kernel was started with.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kernel_command_line: Option<String>,
    /// Who made the machine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hardware_vendor: Option<String>,
    /// The model of the machine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hardware_model: Option<String>,
    /// The serial number of the machine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hardware_serial: Option<String>,
    /// The version of the firmware.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub firmware_version: Option<String>,
    /// Who made the firmware.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub firmware_vendor: Option<String>,
    /// When the firmware was made.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub firmware_date: Option<Time>,
    /// The commit that Garden Linux was built from.
    #[serde(
        rename = "gardenLinuxCommitID",
        skip_serializing_if = "Option::is_none"
    )]
    pub garden_linux_commit_id: Option<String>,
    /// The features that Garden Linux was built with.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub garden_linux_features: Vec<String>,
}

/// What libvirt says the host has.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Capabilities {
    /// The processor architecture of the host.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(transform = schema::default("unknown"))]
    pub cpu_arch: Option<String>,
    /// The memory of all NUMA cells together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::quantity")]
    pub memory: Option<Quantity>,
    /// The processors of all NUMA cells together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::quantity")]
    pub cpus: Option<Quantity>,
}

/// What libvirt says a virtual machine can have here.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DomainCapabilities {
    /// The processor architecture of a virtual machine.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(transform = schema::default("unknown"))]
    pub arch: Option<String>,
    /// The kind of virtualization, for example "kvm" or "ch".
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(transform = schema::default("unknown"))]
    pub hypervisor_type: Option<String>,
    /// Devices: "video" says that the type is supported, "video/virtio" that this model of it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(transform = schema::default(json!([])))]
    pub supported_devices: Option<Vec<String>>,
    /// Processor modes: "mode/maximum" says that the mode is supported, "mode/maximum/on" that this
    /// value of it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(transform = schema::default(json!([])))]
    pub supported_cpu_modes: Option<Vec<String>>,
    /// Features, for example "sev".
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(transform = schema::default(json!([])))]
    pub supported_features: Option<Vec<String>>,
}

/// A NUMA cell.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Cell {
    /// The number of the cell on the host.
    #[serde(rename = "cellID")]
    pub cell_id: i64,
    /// Resources that virtual machines hold in this cell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::quantities")]
    pub allocation: Option<Resources>,
    /// Resources that this cell has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::quantities")]
    pub capacity: Option<Resources>,
    /// Resources of this cell that may be given out: the capacity times spec.overcommit, rounded
    /// down.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::quantities")]
    pub effective_capacity: Option<Resources>,
}
