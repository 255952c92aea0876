//! What an event of libvirt says about a migration. Pure.

use cobalt_api::migration::JobOperation;
use cobalt_libvirt::{Domain, Event, Lifecycle, lifecycle_detail as detail};

use super::sample::Sample;

/// What happened.
#[derive(Debug, Clone, PartialEq)]
pub enum Signal {
    /// A job sends memory: a migration, or the instance is saved. Its statistics tell.
    Copying,
    /// The source has switched to post-copy.
    PostCopy,
    /// Post-copy was interrupted; the instance stands still until it is recovered.
    PostCopyFailed,
    /// The instance has left this host.
    Left,
    /// A job has ended, with its final numbers.
    Completed(Box<Sample>),
    /// The instance begins to come to this host.
    Arriving,
    /// The instance runs here; its memory still comes.
    RunsHere,
    /// The instance has come to this host.
    Arrived,
    /// The instance was stopped, for another reason than a migration.
    Stopped(&'static str),
}

/// What an event says. A plain pause or resume says nothing (W63).
#[must_use]
pub fn read(event: &Event) -> Option<(&Domain, Signal)> {
    let (domain, signal) = match event {
        Event::MigrationIteration { domain, .. } => (domain, Signal::Copying),
        Event::JobCompleted { domain, params } => {
            let sample = Sample::completed(params);
            if sample.operation != JobOperation::MigrationOut {
                return None;
            }
            (domain, Signal::Completed(Box::new(sample)))
        }
        Event::Lifecycle {
            domain,
            event,
            detail,
        } => (domain, lifecycle(*event, *detail)?),
        _ => return None,
    };
    Some((domain, signal))
}

fn lifecycle(event: Lifecycle, number: i32) -> Option<Signal> {
    Some(match (event, number) {
        (Lifecycle::Suspended, detail::SUSPENDED_MIGRATED) => Signal::Copying,
        (Lifecycle::Suspended, detail::SUSPENDED_POSTCOPY) => Signal::PostCopy,
        (Lifecycle::Suspended, detail::SUSPENDED_POSTCOPY_FAILED) => Signal::PostCopyFailed,
        (Lifecycle::Started, detail::STARTED_MIGRATED) => Signal::Arriving,
        (Lifecycle::Resumed, detail::RESUMED_MIGRATED) => Signal::Arrived,
        (Lifecycle::Resumed, detail::RESUMED_POSTCOPY) => Signal::RunsHere,
        (Lifecycle::Stopped, detail::STOPPED_MIGRATED) => Signal::Left,
        (Lifecycle::Stopped, detail::STOPPED_SHUTDOWN) => Signal::Stopped("was shut down"),
        (Lifecycle::Stopped, detail::STOPPED_DESTROYED) => Signal::Stopped("was destroyed"),
        (Lifecycle::Stopped, detail::STOPPED_CRASHED) => Signal::Stopped("crashed"),
        (Lifecycle::Stopped, detail::STOPPED_SAVED) => Signal::Stopped("was saved"),
        (Lifecycle::Stopped, detail::STOPPED_FAILED) => Signal::Stopped("failed"),
        (Lifecycle::Stopped, _) => Signal::Stopped("was stopped"),
        _ => return None,
    })
}
