//! The metrics of migrations.

use cobalt_api::migration::{MigrationResult, MigrationStats, Role};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

/// Which end this host is.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct RoleLabels {
    /// `Source` or `Destination`.
    pub role: &'static str,
}

/// How a migration ended.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct ResultLabels {
    /// `Source` or `Destination`.
    pub role: &'static str,
    /// A closed set: [`MigrationResult`].
    pub result: &'static str,
}

/// Counters, gauges and histograms of migrations. A clone counts into the same.
#[derive(Debug, Clone)]
pub struct MigrationMetrics {
    /// Migrations that run.
    pub running: Family<RoleLabels, Gauge>,
    /// Migrations that have ended.
    pub ended: Family<ResultLabels, Counter>,
    /// Writes of Migrations.
    pub writes: Counter,
    /// Writes that failed.
    pub write_failures: Counter,
    /// How long migrations away from this host took.
    pub duration: Histogram,
    /// How long the instances stood still.
    pub downtime: Histogram,
    /// What was sent.
    pub bytes: Counter,
}

impl Default for MigrationMetrics {
    fn default() -> Self {
        Self {
            running: Family::default(),
            ended: Family::default(),
            writes: Counter::default(),
            write_failures: Counter::default(),
            duration: Histogram::new([1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0]),
            downtime: Histogram::new([0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0]),
            bytes: Counter::default(),
        }
    }
}

impl MigrationMetrics {
    /// Says how many run.
    pub fn running(&self, role: Role, count: usize) {
        let role = role.as_str();
        self.running
            .get_or_create(&RoleLabels { role })
            .set(i64::try_from(count).unwrap_or(i64::MAX));
    }

    /// Counts one that has ended.
    pub fn ended(&self, role: Role, result: MigrationResult, stats: Option<&MigrationStats>) {
        let labels = ResultLabels {
            role: role.as_str(),
            result: result.as_str(),
        };
        self.ended.get_or_create(&labels).inc();
        let (Role::Source, Some(stats)) = (role, stats) else {
            return;
        };
        let seconds = |millis: i64| {
            let millis = u64::try_from(millis).unwrap_or(0);
            std::time::Duration::from_millis(millis).as_secs_f64()
        };
        if let Some(millis) = stats.elapsed_millis {
            self.duration.observe(seconds(millis));
        }
        if result == MigrationResult::Succeeded
            && let Some(millis) = stats.downtime_millis
        {
            self.downtime.observe(seconds(millis));
        }
        if let Some(bytes) = stats
            .data_processed_bytes
            .and_then(|bytes| u64::try_from(bytes).ok())
        {
            self.bytes.inc_by(bytes);
        }
    }

    /// Makes them visible.
    pub fn register(&self, registry: &mut Registry) {
        let name = |name: &str| format!("cobalt_node_agent_{name}");
        registry.register(
            name("migrations_running"),
            "Migrations that run, by the end that this host is",
            self.running.clone(),
        );
        registry.register(
            name("migrations"),
            "Migrations that have ended, by the end that this host is and the result it saw",
            self.ended.clone(),
        );
        registry.register(
            name("migration_writes"),
            "Writes of Migration objects",
            self.writes.clone(),
        );
        registry.register(
            name("migration_write_failures"),
            "Writes of Migration objects that failed",
            self.write_failures.clone(),
        );
        registry.register(
            name("migration_duration_seconds"),
            "How long migrations away from this host took",
            self.duration.clone(),
        );
        registry.register(
            name("migration_downtime_seconds"),
            "How long instances stood still when they left this host",
            self.downtime.clone(),
        );
        registry.register(
            name("migration_sent_bytes"),
            "What migrations away from this host have sent",
            self.bytes.clone(),
        );
    }
}
