//! What libvirt says about a job, as our numbers and as the strings of the first version.
//!
//! libvirt sends each number in the type it likes, and none is required: a number that is missing,
//! negative or too large is left out, and nothing here fails (W61).

use cobalt_api::migration::{JobOperation, JobType, MigrationStats, MigrationStatus};
use cobalt_libvirt::{JobStats, JobType as LibvirtJobType, TypedParams};

use super::text;

/// One reading of a job.
#[derive(Debug, Clone, PartialEq)]
pub struct Sample {
    /// What the job is for.
    pub operation: JobOperation,
    /// Whether it runs, or how it ended.
    pub job_type: Option<JobType>,
    /// Why it failed, in libvirt's words.
    pub error: Option<String>,
    /// The numbers.
    pub stats: MigrationStats,
    /// Numbers that have been integers since the first version.
    pub pages: Pages,
}

/// Counts of pages and rounds.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Pages {
    constant: Option<i64>,
    normal: Option<i64>,
    iteration: Option<i64>,
    postcopy_requests: Option<i64>,
}

impl Sample {
    /// From an answer of libvirt; `None` when it says that there is no job.
    #[must_use]
    pub fn of(job: &JobStats) -> Option<Self> {
        let job_type = match job.job_type {
            LibvirtJobType::None => return None,
            LibvirtJobType::Bounded => Some(JobType::Bounded),
            LibvirtJobType::Unbounded => Some(JobType::Unbounded),
            LibvirtJobType::Completed => Some(JobType::Completed),
            LibvirtJobType::Failed => Some(JobType::Failed),
            LibvirtJobType::Cancelled => Some(JobType::Cancelled),
            LibvirtJobType::Other(_) => None,
        };
        Some(Self::new(job_type, &job.params))
    }

    /// From the event that a job has completed.
    #[must_use]
    pub fn completed(params: &TypedParams) -> Self {
        let failed =
            params.get_bool("success") == Some(false) || text_of(params, "errmsg").is_some();
        let job_type = if failed {
            JobType::Failed
        } else {
            JobType::Completed
        };
        Self::new(Some(job_type), params)
    }

    fn new(job_type: Option<JobType>, params: &TypedParams) -> Self {
        let number = |name: &str| {
            params
                .get_u64(name)
                .and_then(|number| i64::try_from(number).ok())
        };
        let throttle = params
            .get_i64("auto_converge_throttle")
            .and_then(|percent| i32::try_from(percent).ok())
            .filter(|percent| (0..=100).contains(percent));
        Self {
            operation: operation(params.get_i64("operation")),
            job_type,
            error: text_of(params, "errmsg"),
            stats: MigrationStats {
                elapsed_millis: number("time_elapsed"),
                remaining_millis: number("time_remaining"),
                downtime_millis: number("downtime"),
                setup_millis: number("setup_time"),
                data_total_bytes: number("data_total"),
                data_processed_bytes: number("data_processed"),
                data_remaining_bytes: number("data_remaining"),
                mem_total_bytes: number("memory_total"),
                mem_processed_bytes: number("memory_processed"),
                mem_remaining_bytes: number("memory_remaining"),
                mem_normal_bytes: number("memory_normal_bytes"),
                mem_bytes_per_second: number("memory_bps"),
                mem_dirty_pages_per_second: number("memory_dirty_rate"),
                mem_page_size_bytes: number("memory_page_size"),
                disk_total_bytes: number("disk_total"),
                disk_processed_bytes: number("disk_processed"),
                disk_remaining_bytes: number("disk_remaining"),
                disk_bytes_per_second: number("disk_bps"),
                throttle_percent: throttle,
            },
            pages: Pages {
                constant: number("memory_constant"),
                normal: number("memory_normal"),
                iteration: number("memory_iteration"),
                postcopy_requests: number("memory_postcopy_requests"),
            },
        }
    }

    /// Writes the strings of the first version beside the numbers.
    pub(super) fn fill(&self, status: &mut MigrationStatus) {
        let stats = &self.stats;
        let natural = |number: Option<i64>| number.and_then(|number| u64::try_from(number).ok());
        let duration = |number| natural(number).map(text::duration);
        let size = |number| natural(number).map(text::size);
        let speed = |number| natural(number).map(text::size_per_second);
        status.time_elapsed = duration(stats.elapsed_millis);
        status.time_remaining = duration(stats.remaining_millis);
        status.downtime = duration(stats.downtime_millis);
        status.setup_time = duration(stats.setup_millis);
        status.data_total = size(stats.data_total_bytes);
        status.data_processed = size(stats.data_processed_bytes);
        status.data_remaining = size(stats.data_remaining_bytes);
        status.mem_total = size(stats.mem_total_bytes);
        status.mem_processed = size(stats.mem_processed_bytes);
        status.mem_remaining = size(stats.mem_remaining_bytes);
        status.mem_normal_bytes = size(stats.mem_normal_bytes);
        status.mem_bps = speed(stats.mem_bytes_per_second);
        status.mem_page_size = size(stats.mem_page_size_bytes);
        status.mem_dirty_rate = natural(stats.mem_dirty_pages_per_second).map(text::per_second);
        status.mem_constant = self.pages.constant;
        status.mem_normal = self.pages.normal;
        status.mem_iteration = self.pages.iteration;
        status.mem_postcopy_requests = self.pages.postcopy_requests;
        status.disk_total = size(stats.disk_total_bytes);
        status.disk_processed = size(stats.disk_processed_bytes);
        status.disk_remaining = size(stats.disk_remaining_bytes);
        status.disk_bps = speed(stats.disk_bytes_per_second);
        status.auto_converge_throttle = stats
            .throttle_percent
            .map(|percent| text::percent(i64::from(percent)));
    }
}

fn text_of(params: &TypedParams, name: &str) -> Option<String> {
    let text = params.get_str(name)?.trim();
    (!text.is_empty()).then(|| text.to_owned())
}

/// libvirt's numbers of operations are our variants in their order.
fn operation(number: Option<i64>) -> JobOperation {
    number
        .and_then(|number| usize::try_from(number).ok())
        .and_then(|index| JobOperation::ALL.get(index))
        .copied()
        .unwrap_or(JobOperation::Unknown)
}

#[cfg(test)]
pub(super) mod tests {
    use cobalt_libvirt::TypedValue;

    use super::*;

    /// A running job of an outgoing migration, as libvirt 9.0 shows it.
    pub fn live(elapsed: u64, operation: i32) -> JobStats {
        let params = TypedParams::default()
            .with("operation", TypedValue::Int(operation))
            .with("time_elapsed", TypedValue::ULong(elapsed))
            .with("setup_time", TypedValue::ULong(3))
            .with("downtime", TypedValue::ULong(300))
            .with("data_total", TypedValue::ULong(67_641_344))
            .with("data_processed", TypedValue::ULong(747_666 + elapsed))
            .with("data_remaining", TypedValue::ULong(62_861_312))
            .with("memory_total", TypedValue::ULong(67_641_344))
            .with("memory_bps", TypedValue::ULong(1_067_450))
            .with("memory_dirty_rate", TypedValue::ULong(0))
            .with("memory_page_size", TypedValue::ULong(4096))
            .with("memory_iteration", TypedValue::ULong(1))
            .with("auto_converge_throttle", TypedValue::Int(20));
        JobStats {
            job_type: LibvirtJobType::Unbounded,
            params,
        }
    }

    /// The recorded event of the end of a migration.
    pub fn job_completed() -> TypedParams {
        [
            ("time_elapsed", 3404),
            ("time_elapsed_net", 3403),
            ("downtime", 103),
            ("downtime_net", 102),
            ("setup_time", 1),
            ("data_total", 67_641_344),
            ("data_processed", 33_215_879),
            ("data_remaining", 0),
            ("memory_total", 67_641_344),
            ("memory_processed", 33_215_879),
            ("memory_remaining", 0),
            ("memory_bps", 13_775_702),
            ("memory_constant", 10_244),
            ("memory_normal", 8071),
            ("memory_normal_bytes", 33_058_816),
            ("memory_dirty_rate", 0),
            ("memory_iteration", 3),
            ("memory_postcopy_requests", 0),
            ("memory_page_size", 4096),
            ("disk_total", 0),
            ("disk_processed", 0),
            ("disk_remaining", 0),
        ]
        .into_iter()
        .fold(
            TypedParams::default().with("operation", TypedValue::Int(5)),
            |params, (name, number)| params.with(name, TypedValue::ULong(number)),
        )
    }

    #[test]
    fn the_recorded_end_of_a_migration_is_read_and_written_as_deployed() {
        let sample = Sample::completed(&job_completed());
        assert_eq!(sample.operation, JobOperation::MigrationOut);
        assert_eq!(sample.stats.elapsed_millis, Some(3404));
        assert_eq!(sample.stats.downtime_millis, Some(103));
        let mut status = MigrationStatus::default();
        sample.fill(&mut status);
        for (text, wanted) in [
            (&status.time_elapsed, "3.404s"),
            (&status.downtime, "103ms"),
            (&status.data_total, "65 MiB"),
            (&status.data_remaining, "0 B"),
            (&status.mem_bps, "13 MiB/s"),
            (&status.mem_dirty_rate, "0/s"),
            (&status.mem_page_size, "4.0 KiB"),
        ] {
            assert_eq!(text.as_deref(), Some(wanted));
        }
        assert_eq!(status.mem_iteration, Some(3));
        assert_eq!(status.time_remaining, None);
    }

    #[test]
    fn w61_a_number_of_any_type_is_read_and_a_bad_one_is_left_out() {
        let read = |value: TypedValue| {
            let params = TypedParams::default().with("time_elapsed", value);
            Sample::completed(&params).stats.elapsed_millis
        };
        for value in [
            TypedValue::Int(5000),
            TypedValue::UInt(5000),
            TypedValue::Long(5000),
            TypedValue::ULong(5000),
        ] {
            assert_eq!(read(value), Some(5000));
        }
        assert_eq!(read(TypedValue::ULong(u64::MAX)), None);
        assert_eq!(read(TypedValue::Int(-1)), None);
        assert_eq!(read(TypedValue::String("soon".into())), None);
        let params = TypedParams::default().with("auto_converge_throttle", TypedValue::Int(20));
        assert_eq!(Sample::completed(&params).stats.throttle_percent, Some(20));
    }

    #[test]
    fn operations_have_the_numbers_of_libvirt() {
        for (number, wanted) in [
            (0, JobOperation::Unknown),
            (2, JobOperation::Save),
            (4, JobOperation::MigrationIn),
            (5, JobOperation::MigrationOut),
            (10, JobOperation::SnapshotDelete),
            (11, JobOperation::Unknown),
            (-1, JobOperation::Unknown),
        ] {
            assert_eq!(operation(Some(number)), wanted);
        }
        assert_eq!(operation(None), JobOperation::Unknown);
    }
}
