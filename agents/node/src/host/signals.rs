//! The signals of systemd, logind and hostnamed: which are asked for, and what they tell. Pure.

use zbus::message::{Message, Type};

use super::bus::{BUS, HOSTNAMED, LOGIND, PROPERTIES, Properties, SYSTEMD, Target, UNIT, text};

/// Something that a service told everybody.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Signal {
    /// A unit has changed. What has not changed may be missing.
    Unit {
        /// Its object.
        path: String,
        /// Its `ActiveState`.
        active: Option<String>,
        /// Its `SubState`.
        sub: Option<String>,
    },
    /// systemd has read its unit files again, or is a new one: what was read before may be wrong.
    UnitsReloaded,
    /// A job of systemd is done with.
    JobRemoved {
        /// Its object.
        job: String,
        /// The unit it was for.
        unit: String,
        /// `done`, `failed`, `canceled`, `timeout`, `dependency`, `skipped`, ...
        result: String,
    },
    /// hostnamed knows something new.
    Hostname,
    /// The host is about to shut down (or to sleep), or that was called off.
    Prepare {
        /// It is.
        begins: bool,
        /// It only sleeps.
        sleep: bool,
    },
    /// A service came or went.
    Owner {
        /// The service.
        service: String,
        /// It is there.
        present: bool,
    },
}

/// The object of a unit. systemd writes every byte that is not a letter or a digit as `_xx`.
#[must_use]
pub fn unit_path(unit: &str) -> String {
    let mut path = "/org/freedesktop/systemd1/unit/".to_owned();
    for (index, byte) in unit.bytes().enumerate() {
        let plain = byte.is_ascii_alphabetic() || (byte.is_ascii_digit() && index > 0);
        if plain {
            path.push(char::from(byte));
        } else {
            path.push_str(&format!("_{byte:02x}"));
        }
    }
    path
}

/// The rule for changes of a unit.
#[must_use]
pub fn unit_rule(unit: &str) -> String {
    format!(
        "type='signal',sender='{}',interface='{PROPERTIES}',member='PropertiesChanged',path='{}',\
         arg0='{UNIT}'",
        SYSTEMD.service,
        unit_path(unit)
    )
}

/// The rule for the ends of a unit's jobs.
#[must_use]
pub fn job_rule(unit: &str) -> String {
    format!("{},arg2='{unit}'", member_rule(SYSTEMD, "JobRemoved"))
}

/// The rules that hold for as long as the connection.
#[must_use]
pub fn standing_rules() -> Vec<String> {
    let owner =
        |service: &str| format!("{},arg0='{service}'", member_rule(BUS, "NameOwnerChanged"));
    vec![
        owner(SYSTEMD.service),
        owner(LOGIND.service),
        member_rule(SYSTEMD, "Reloading"),
        member_rule(LOGIND, "PrepareForShutdown"),
        member_rule(LOGIND, "PrepareForSleep"),
        format!(
            "type='signal',sender='{}',interface='{PROPERTIES}',member='PropertiesChanged'",
            HOSTNAMED.service
        ),
    ]
}

fn member_rule(target: Target, member: &str) -> String {
    let Target {
        service, interface, ..
    } = target;
    format!("type='signal',sender='{service}',interface='{interface}',member='{member}'")
}

/// What a message tells, if it is a signal that matters.
#[must_use]
pub fn decode(message: &Message) -> Option<Signal> {
    if message.message_type() != Type::Signal {
        return None;
    }
    let header = message.header();
    let path = header.path()?.as_str();
    let body = message.body();
    match header.member()?.as_str() {
        "PropertiesChanged" if path == HOSTNAMED.path => Some(Signal::Hostname),
        "PropertiesChanged" => {
            let (interface, changed, _): (String, Properties, Vec<String>) =
                body.deserialize().ok()?;
            (interface == UNIT).then(|| Signal::Unit {
                path: path.to_owned(),
                active: text(&changed, "ActiveState"),
                sub: text(&changed, "SubState"),
            })
        }
        "Reloading" => {
            let begins: bool = body.deserialize().ok()?;
            (!begins).then_some(Signal::UnitsReloaded)
        }
        "JobRemoved" => {
            let (_, job, unit, result): (u32, zbus::OwnedObjectPath, String, String) =
                body.deserialize().ok()?;
            Some(Signal::JobRemoved {
                job: job.as_str().to_owned(),
                unit,
                result,
            })
        }
        member @ ("PrepareForShutdown" | "PrepareForSleep") => Some(Signal::Prepare {
            begins: body.deserialize().ok()?,
            sleep: member == "PrepareForSleep",
        }),
        "NameOwnerChanged" => {
            let (service, _, new): (String, String, String) = body.deserialize().ok()?;
            Some(Signal::Owner {
                service,
                present: !new.is_empty(),
            })
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_unit_has_the_object_that_systemd_gives_it() {
        for (unit, object) in [
            ("libvirtd.service", "libvirtd_2eservice"),
            (
                "systemd-sysupdate@1.2.service",
                "systemd_2dsysupdate_401_2e2_2eservice",
            ),
            ("9p.mount", "_39p_2emount"),
        ] {
            assert_eq!(
                unit_path(unit),
                format!("/org/freedesktop/systemd1/unit/{object}")
            );
        }
    }

    #[test]
    fn signals_that_do_not_matter_or_are_broken_are_passed_over() {
        let signal = |path: &'static str, interface: &'static str, member: &'static str| {
            Message::signal(path, interface, member)
        };
        let ours = signal(LOGIND.path, LOGIND.interface, "PrepareForShutdown");
        let ours = ours.build(&(true,)).unwrap();
        assert_eq!(
            decode(&ours),
            Some(Signal::Prepare {
                begins: true,
                sleep: false
            })
        );
        let broken = signal(LOGIND.path, LOGIND.interface, "PrepareForShutdown");
        assert_eq!(decode(&broken.build(&("yes",)).unwrap()), None);
        let other = signal(LOGIND.path, LOGIND.interface, "SessionNew");
        assert_eq!(decode(&other.build(&("1",)).unwrap()), None);
    }
}
