//! A breaker: a service that fails again and again is left alone for a while.
//!
//! ```text
//!           failures in a row                    after a while, for one call
//!  Closed ---------------------> Open -----------------------------------------> Probing
//!    ^                             ^------------------ it failed -------------------|
//!    '------------------------------------------------ it worked -------------------'
//! ```
//!
//! Only what says that the service is not well counts: no connection, no answer, a 5xx. Any other
//! answer, a refusal too, shows that it works.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use jiff::Timestamp;

/// When a breaker opens, and for how long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BreakerConfig {
    /// Failures in a row that open it.
    pub failures: u32,
    /// How long nothing is sent, until one call may try.
    pub rest: Duration,
}

impl Default for BreakerConfig {
    fn default() -> Self {
        Self {
            failures: 5,
            rest: Duration::from_secs(15),
        }
    }
}

/// How a service does, for metrics and conditions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BreakerState {
    /// It answers; so many calls in a row failed.
    Closed {
        /// Failures in a row, 0 when the last call was answered.
        failures: u32,
    },
    /// It is left alone.
    Open {
        /// When it opened first.
        since: Timestamp,
        /// How the last call failed.
        why: String,
        /// When one call may try; zero if one may now, or does.
        retry_in: Duration,
    },
}

#[derive(Debug)]
enum State {
    Closed {
        failures: u32,
    },
    Open {
        since: Timestamp,
        until: Instant,
        why: String,
        probing: bool,
    },
}

#[derive(Debug)]
pub(crate) struct Breaker {
    config: BreakerConfig,
    state: Mutex<State>,
}

/// Leave to make one call. Dropped without a word it says nothing about the service.
#[derive(Debug)]
pub(crate) struct Pass<'a> {
    breaker: &'a Breaker,
    probe: bool,
    done: bool,
}

/// Why a call may not be made.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Refused {
    pub since: Timestamp,
    pub why: String,
    pub retry_in: Duration,
}

impl Breaker {
    pub fn new(config: BreakerConfig) -> Self {
        Self {
            config,
            state: Mutex::new(State::Closed { failures: 0 }),
        }
    }

    pub fn state(&self, now: Instant) -> BreakerState {
        match &*self.lock() {
            State::Closed { failures } => BreakerState::Closed {
                failures: *failures,
            },
            State::Open {
                since, until, why, ..
            } => BreakerState::Open {
                since: *since,
                why: why.clone(),
                retry_in: until.saturating_duration_since(now),
            },
        }
    }

    /// Asks for leave to make a call.
    pub fn enter(&self, now: Instant) -> Result<Pass<'_>, Refused> {
        let probe = match &mut *self.lock() {
            State::Closed { .. } => false,
            State::Open { until, probing, .. } if now >= *until && !*probing => {
                *probing = true;
                true
            }
            State::Open {
                since, until, why, ..
            } => {
                return Err(Refused {
                    since: *since,
                    why: why.clone(),
                    retry_in: until.saturating_duration_since(now),
                });
            }
        };
        Ok(Pass {
            breaker: self,
            probe,
            done: false,
        })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Pass<'_> {
    /// The service answered. True if that closed the breaker.
    pub fn worked(mut self) -> bool {
        self.done = true;
        let mut state = self.breaker.lock();
        // A call that began before the breaker opened and ends well is as good as a probe.
        let was_open = matches!(*state, State::Open { .. });
        *state = State::Closed { failures: 0 };
        was_open
    }

    /// The service is not well. True if that opened the breaker.
    pub fn failed(mut self, why: &str, now: Instant, time: Timestamp) -> bool {
        self.done = true;
        let config = self.breaker.config;
        let mut state = self.breaker.lock();
        match &mut *state {
            State::Closed { failures } => {
                *failures = failures.saturating_add(1);
                if *failures < config.failures {
                    return false;
                }
                *state = State::Open {
                    since: time,
                    until: now + config.rest,
                    why: why.to_owned(),
                    probing: false,
                };
                true
            }
            State::Open {
                until,
                why: last,
                probing,
                ..
            } => {
                if self.probe {
                    *probing = false;
                    *until = now + config.rest;
                }
                why.clone_into(last);
                false
            }
        }
    }
}

impl Drop for Pass<'_> {
    fn drop(&mut self) {
        if self.probe
            && !self.done
            && let State::Open { probing, .. } = &mut *self.breaker.lock()
        {
            *probing = false;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REST: Duration = Duration::from_secs(10);

    fn breaker() -> (Breaker, Instant, Timestamp) {
        let config = BreakerConfig {
            failures: 3,
            rest: REST,
        };
        (Breaker::new(config), Instant::now(), Timestamp::UNIX_EPOCH)
    }

    fn fail(breaker: &Breaker, now: Instant, time: Timestamp) -> bool {
        breaker.enter(now).unwrap().failed("no answer", now, time)
    }

    #[test]
    fn failures_in_a_row_open_it_and_an_answer_begins_anew() {
        let (breaker, now, time) = breaker();
        assert!(!fail(&breaker, now, time));
        assert!(!fail(&breaker, now, time));
        assert!(!breaker.enter(now).unwrap().worked());
        assert!(!fail(&breaker, now, time));
        assert!(!fail(&breaker, now, time));
        assert!(fail(&breaker, now, time));
        let refused = breaker.enter(now).unwrap_err();
        assert_eq!((refused.since, refused.retry_in), (time, REST));
        assert_eq!(refused.why, "no answer");
    }

    #[test]
    fn one_call_tries_and_decides() {
        let (breaker, now, time) = breaker();
        for _ in 0..3 {
            fail(&breaker, now, time);
        }
        let later = now + REST;
        let probe = breaker.enter(later).unwrap();
        breaker.enter(later).unwrap_err();
        let second = time + Duration::from_secs(10);
        assert!(!probe.failed("still nothing", later, second));
        // It is open since the first time, and says what was seen last.
        let BreakerState::Open {
            since,
            why,
            retry_in,
        } = breaker.state(later)
        else {
            panic!("it is closed");
        };
        assert_eq!(
            (since, why.as_str(), retry_in),
            (time, "still nothing", REST)
        );
        assert!(breaker.enter(later + REST).unwrap().worked());
        assert_eq!(breaker.state(later), BreakerState::Closed { failures: 0 });
    }

    #[test]
    fn a_probe_that_is_given_up_lets_the_next_call_try() {
        let (breaker, now, time) = breaker();
        for _ in 0..3 {
            fail(&breaker, now, time);
        }
        drop(breaker.enter(now + REST).unwrap());
        assert!(breaker.enter(now + REST).unwrap().worked());
    }
}
