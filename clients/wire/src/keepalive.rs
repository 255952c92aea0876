//! Notices a peer that has gone without a word.

use std::time::Duration;

use tokio::time::Instant;

use crate::Closed;

/// How a silent peer is noticed: it is asked, and the connection ends when it stays silent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Keepalive {
    /// After how much silence it is asked, and asked again.
    pub interval: Duration,
    /// How many questions may remain without an answer.
    pub count: u32,
}

impl Default for Keepalive {
    fn default() -> Self {
        Self {
            interval: Duration::from_secs(5),
            count: 3,
        }
    }
}

/// How long a peer has been silent. Without a keepalive that does not matter.
#[derive(Debug)]
pub struct Watch {
    keepalive: Option<Keepalive>,
    /// How many questions are without an answer.
    asked: u32,
    /// When the next question is asked, or the peer is given up.
    due: Option<Instant>,
}

impl Watch {
    /// The silence begins now.
    pub fn new(keepalive: Option<Keepalive>) -> Self {
        let mut watch = Self {
            keepalive,
            asked: 0,
            due: None,
        };
        watch.heard();
        watch
    }

    /// The peer has said something: whatever it is, the peer is there.
    pub fn heard(&mut self) {
        self.asked = 0;
        self.postpone();
    }

    fn postpone(&mut self) {
        let interval = self.keepalive.map(|keepalive| keepalive.interval);
        self.due = interval.map(|interval| Instant::now() + interval);
    }

    /// Waits until the peer has been silent for the interval.
    pub async fn silence(&self) {
        match self.due {
            Some(due) => tokio::time::sleep_until(due).await,
            None => std::future::pending().await,
        }
    }

    /// Counts a question, which the caller sends; or gives the peer up.
    pub fn ask<P>(&mut self) -> Result<(), Closed<P>> {
        if let Some(Keepalive { interval, count }) = self.keepalive
            && self.asked >= count
        {
            return Err(Closed::Keepalive { interval, count });
        }
        self.asked += 1;
        // From now: a process that was stopped gives its peer the time that it missed itself.
        self.postpone();
        Ok(())
    }
}
