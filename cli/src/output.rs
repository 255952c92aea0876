//! How a command prints: text for people, or one JSON document for programs.
//!
//! With `-o json` standard output has the document and nothing else; what tells how far the command
//! is goes to standard error, where errors go in either case.

use anyhow::Result;
use clap::{Args, ValueEnum};
use serde::Serialize;

use crate::text::{self, put, tell};

/// The flag that every command that prints has.
#[derive(Clone, Copy, Debug, Args)]
pub struct OutputArgs {
    /// Text for people, or one JSON document for programs
    #[arg(long, short, value_name = "FORMAT", default_value = "text")]
    pub output: Format,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    Text,
    Json,
}

impl Format {
    /// Tells a person what happens.
    pub fn progress(self, text: &str) {
        match self {
            Self::Text => put(text),
            Self::Json => tell(text),
        }
    }

    /// Prints the document, if one is wanted.
    ///
    /// # Errors
    ///
    /// When it cannot be written as JSON.
    pub fn document(self, document: &impl Serialize) -> Result<()> {
        if self == Self::Json {
            put(&text::json(document)?);
        }
        Ok(())
    }

    /// Prints the text, or the document in its place.
    ///
    /// # Errors
    ///
    /// When the document cannot be written as JSON.
    pub fn print(self, text: &str, document: &impl Serialize) -> Result<()> {
        if self == Self::Text {
            put(text);
        }
        self.document(document)
    }
}
