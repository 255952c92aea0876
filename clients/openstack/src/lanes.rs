//! The way to each service: a budget of calls, a breaker, and somebody who counts.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{Method, Request};
use http_body_util::Full;
use jiff::Timestamp;
use tokio::sync::Semaphore;
use tokio::time::timeout_at;

use crate::breaker::{Breaker, BreakerConfig, BreakerState};
use crate::error::{Call, Error, Result};
use crate::http::{Answer, Http, SendError};
use crate::observer::{Observer, Outcome};
use crate::refusal::Refusal;
use crate::service::Service;

/// Shared by all sessions of one client, whatever their scope: it is the same cloud.
#[derive(Debug)]
pub(crate) struct Lanes {
    identity: Lane,
    compute: Lane,
    placement: Lane,
    image: Lane,
    network: Lane,
    volume: Lane,
    observer: Arc<dyn Observer>,
}

#[derive(Debug)]
struct Lane {
    budget: usize,
    room: Semaphore,
    breaker: Breaker,
}

/// The time that one call has, with everything that is done for it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Deadline {
    begun: Instant,
    until: Instant,
}

impl Deadline {
    pub fn after(duration: Duration) -> Self {
        let begun = Instant::now();
        Self {
            begun,
            until: begun + duration,
        }
    }

    pub fn elapsed(&self) -> Duration {
        self.begun.elapsed()
    }

    /// Whether there is time to wait so long and to do something afterwards.
    pub fn allows(&self, wait: Duration) -> bool {
        Instant::now() + wait < self.until
    }

    pub fn until(&self) -> tokio::time::Instant {
        self.until.into()
    }
}

impl Lanes {
    pub fn new(budget: usize, breaker: BreakerConfig, observer: Arc<dyn Observer>) -> Self {
        // None at all would be a client that does nothing.
        let budget = budget.clamp(1, Semaphore::MAX_PERMITS);
        let lane = || Lane {
            budget,
            room: Semaphore::new(budget),
            breaker: Breaker::new(breaker),
        };
        Self {
            identity: lane(),
            compute: lane(),
            placement: lane(),
            image: lane(),
            network: lane(),
            volume: lane(),
            observer,
        }
    }

    fn lane(&self, service: Service) -> &Lane {
        match service {
            Service::Identity => &self.identity,
            Service::Compute => &self.compute,
            Service::Placement => &self.placement,
            Service::Image => &self.image,
            Service::Network => &self.network,
            Service::Volume => &self.volume,
        }
    }

    pub fn state(&self, service: Service) -> BreakerState {
        self.lane(service).breaker.state(Instant::now())
    }

    /// Sends one request, once.
    pub async fn send(
        &self,
        http: &Http,
        call: &Call,
        request: Request<Full<Bytes>>,
        limit: usize,
        deadline: Deadline,
    ) -> Result<Answer> {
        let begun = Instant::now();
        let lane = self.lane(call.service);
        let result = lane.send(http, call, request, limit, deadline).await;
        let outcome = Outcome::of(&result);
        let duration = begun.elapsed();
        tracing::trace!(service = %call.service, call = call.name, path = call.path,
            outcome = outcome.as_str(), ?duration, "request");
        self.observer
            .on_call(call.service, call.name, outcome, duration);
        result
    }
}

impl Lane {
    async fn send(
        &self,
        http: &Http,
        call: &Call,
        request: Request<Full<Bytes>>,
        limit: usize,
        deadline: Deadline,
    ) -> Result<Answer> {
        // The semaphore is never closed, so an error is a deadline that passed.
        let Ok(Ok(_room)) = timeout_at(deadline.until(), self.room.acquire()).await else {
            return Err(Error::Busy {
                call: call.clone(),
                budget: self.budget,
                after: deadline.elapsed(),
            });
        };
        let pass = match self.breaker.enter(Instant::now()) {
            Ok(pass) => pass,
            Err(refused) => {
                return Err(Error::Open {
                    call: call.clone(),
                    since: refused.since,
                    why: refused.why,
                    retry_in: refused.retry_in,
                });
            }
        };
        // A login is asked for by those who only look, too.
        let changes = request.method() != Method::GET && call.service != Service::Identity;
        let result = match timeout_at(deadline.until(), http.send(request, changes)).await {
            Ok(Ok(answer)) if answer.status.is_success() => Ok(answer),
            Ok(Ok(answer)) => {
                let now = Timestamp::now();
                let status = answer.status.as_u16();
                let refusal = Refusal::read(status, &answer.headers, &answer.body, now);
                Err(Error::Refused {
                    call: call.clone(),
                    refusal: Box::new(refusal),
                })
            }
            Ok(Err(SendError::TooLarge)) => Err(Error::TooLarge {
                call: call.clone(),
                limit,
            }),
            // It says nothing about the service, so the breaker is not told.
            Ok(Err(SendError::NotAllowed)) => return Err(Error::NotAllowed { call: call.clone() }),
            Ok(Err(SendError::Broken { sent, source })) => Err(Error::Unreachable {
                call: call.clone(),
                sent,
                source,
            }),
            Err(_) => Err(Error::TimedOut {
                call: call.clone(),
                after: deadline.elapsed(),
            }),
        };
        match &result {
            Err(error) if is_sick(error) => {
                let why = described(error);
                if pass.failed(&why, Instant::now(), Timestamp::now()) {
                    tracing::warn!(service = %call.service, error = why,
                        "a service of OpenStack fails again and again and is left alone for a while");
                }
            }
            _ => {
                if pass.worked() {
                    tracing::info!(service = %call.service, "a service of OpenStack answers again");
                }
            }
        }
        result
    }
}

/// Whether it says that the service is not well.
fn is_sick(error: &Error) -> bool {
    match error {
        Error::Refused { refusal, .. } => {
            refusal.status >= 500 && !refusal.is_generation_conflict()
        }
        Error::Unreachable { .. } | Error::TimedOut { .. } => true,
        _ => false,
    }
}

/// With its causes, for the state of the breaker.
pub(crate) fn described(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text.push_str(": ");
        text.push_str(&error.to_string());
        source = error.source();
    }
    text
}
