//! The terminal: what is drawn in place, and what is asked there.

use std::io::{BufRead, IsTerminal, stdin, stdout};

use tokio::sync::mpsc;

use super::view::Size;
use crate::text::put;

/// Lines at the end of the output that are drawn anew in place.
#[derive(Debug, Default)]
pub struct Screen {
    drawn: usize,
}

impl Screen {
    /// The terminal of this program, if it has one that can be drawn on.
    pub fn open() -> Option<Self> {
        let is_dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb");
        (stdout().is_terminal() && !is_dumb).then(Self::default)
    }

    pub fn size() -> Size {
        let told = rustix::termios::tcgetwinsize(stdout()).ok();
        let told = told.filter(|size| size.ws_col > 0 && size.ws_row > 0);
        told.map_or(
            Size {
                columns: 80,
                rows: 24,
            },
            |size| Size {
                columns: size.ws_col.into(),
                rows: size.ws_row.into(),
            },
        )
    }

    /// Draws lines in the place of those that were drawn before.
    pub fn draw(&mut self, lines: &[String]) {
        let mut out = self.home();
        for line in lines {
            out.push_str(line);
            out.push_str("\x1b[K\n");
        }
        // What is below is of a longer frame.
        out.push_str("\x1b[J");
        put(&out);
        self.drawn = lines.len();
    }

    /// Removes what is drawn.
    pub fn clear(&mut self) {
        self.draw(&[]);
    }

    /// Writes below what is drawn, which stays as it is.
    pub fn below(&mut self, text: &str) {
        put(&format!("\r\x1b[J{text}"));
        self.drawn = 0;
    }

    fn home(&self) -> String {
        match self.drawn {
            0 => "\r".to_owned(),
            lines => format!("\r\x1b[{lines}A"),
        }
    }
}

/// Whether somebody can answer.
pub fn can_ask() -> bool {
    stdin().is_terminal()
}

/// What is typed, line by line, until the end of the input. The reader is a thread of its own that
/// nobody waits for: a person may never answer.
pub fn answers() -> mpsc::Receiver<String> {
    let (sender, receiver) = mpsc::channel(1);
    std::thread::spawn(move || {
        for line in stdin().lock().lines() {
            let Ok(line) = line else { return };
            if sender.blocking_send(line).is_err() {
                return;
            }
        }
    });
    receiver
}
