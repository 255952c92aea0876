//! The stream that events come through.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use futures::Stream;
use tokio::sync::mpsc;

use super::{Event, EventKind};
use crate::connection::Client;
use crate::driver::Order;

/// How many events wait for a slow reader before the newest are dropped.
const QUEUE: usize = 4096;

/// The driver's end of a stream. One stream has one for each kind of event; all are used by the one
/// task, so the room that it sees in the queue is not taken by anybody else.
#[derive(Debug, Clone)]
pub struct Sink {
    queue: mpsc::Sender<Event>,
    /// The last thing in the queue is `Overflow`.
    lost: Arc<AtomicBool>,
}

impl Sink {
    /// Appends an event; drops it if there is no room.
    pub fn push(&self, event: Event) {
        // The last place is for `Overflow`.
        if self.queue.capacity() > 1 {
            self.lost.store(false, Ordering::Relaxed);
            // A reader that has gone away has ended its subscription, too.
            drop(self.queue.try_send(event));
        } else {
            self.lose();
        }
    }

    /// Whether the reader has gone away.
    pub fn is_closed(&self) -> bool {
        self.queue.is_closed()
    }

    /// Tells that something was lost, once: as long as nothing follows it in the queue, one
    /// `Overflow` is about everything up to the moment when it is read.
    pub fn lose(&self) {
        let unread = self.queue.capacity() < self.queue.max_capacity();
        if self.lost.swap(true, Ordering::Relaxed) && unread {
            return;
        }
        drop(self.queue.try_send(Event::Overflow));
    }
}

/// Events as they come. It ends with the connection; when it is dropped, libvirt is told.
#[derive(Debug)]
pub struct EventStream {
    events: mpsc::Receiver<Event>,
    client: Client,
    kinds: Vec<EventKind>,
    callbacks: Vec<i32>,
}

impl EventStream {
    pub(crate) fn new(client: Client) -> (Sink, Self) {
        let (queue, events) = mpsc::channel(QUEUE);
        let sink = Sink {
            queue,
            lost: Arc::default(),
        };
        let stream = Self {
            events,
            client,
            kinds: Vec::new(),
            callbacks: Vec::new(),
        };
        (sink, stream)
    }

    pub(crate) fn subscribed(&mut self, kind: EventKind, callback: i32) {
        self.kinds.push(kind);
        self.callbacks.push(callback);
    }

    /// What is subscribed to.
    pub fn kinds(&self) -> &[EventKind] {
        &self.kinds
    }
}

impl Stream for EventStream {
    type Item = Event;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Event>> {
        self.events.poll_recv(cx)
    }
}

impl Drop for EventStream {
    fn drop(&mut self) {
        let callbacks = std::mem::take(&mut self.callbacks);
        self.client.try_order(Order::Unsubscribe(callbacks));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::Options;

    fn stream() -> (Sink, EventStream) {
        let client = Client::start(
            Box::new(tokio::io::empty()),
            Box::new(tokio::io::sink()),
            &Options::default(),
        );
        EventStream::new(client)
    }

    fn reboot(number: usize) -> Event {
        Event::Reboot {
            domain: crate::Domain {
                name: number.to_string(),
                uuid: uuid::Uuid::nil(),
                id: None,
            },
        }
    }

    /// Everything that is there; `None` is an `Overflow`.
    fn read(stream: &mut EventStream, most: usize) -> Vec<Option<usize>> {
        std::iter::from_fn(|| stream.events.try_recv().ok())
            .take(most)
            .map(|event| event.domain().map(|domain| domain.name.parse().unwrap()))
            .collect()
    }

    #[tokio::test]
    async fn a_slow_reader_loses_the_newest_and_is_told_once() {
        let (sink, mut stream) = stream();
        for number in 0..QUEUE * 3 {
            sink.push(reboot(number));
        }
        let mut expected: Vec<_> = (0..QUEUE - 1).map(Some).collect();
        expected.push(None);
        assert_eq!(read(&mut stream, usize::MAX), expected);
        // Then it goes on as if nothing had been.
        sink.push(reboot(1));
        assert_eq!(read(&mut stream, usize::MAX), [Some(1)]);
    }

    #[tokio::test]
    async fn whatever_is_lost_an_overflow_follows_it() {
        let (sink, mut stream) = stream();
        for number in 0..QUEUE {
            sink.push(reboot(number));
        }
        // There is room for one, and the overflow is still unread: no second one, no event.
        read(&mut stream, 1);
        sink.push(reboot(QUEUE));
        // Now there is room for an event behind the overflow, and then for another overflow.
        read(&mut stream, 1);
        sink.push(reboot(QUEUE + 1));
        sink.push(reboot(QUEUE + 2));
        let mut expected: Vec<_> = (2..QUEUE - 1).map(Some).collect();
        expected.extend([None, Some(QUEUE + 1), None]);
        assert_eq!(read(&mut stream, usize::MAX), expected);
        // An event that cannot be read is a loss like any other, also when all is read.
        sink.lose();
        sink.lose();
        assert_eq!(read(&mut stream, usize::MAX), [None]);
        sink.lose();
        assert_eq!(read(&mut stream, usize::MAX), [None]);
    }
}
