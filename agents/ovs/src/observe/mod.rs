//! What the agent sees: one task for each connection, each with its own watch channel. A connection
//! that is lost is made again; meanwhile what was seen last stays, and the channel says why.

pub mod counters;
pub mod daemon;
pub mod flows;
pub mod mtus;
pub mod rows;
pub mod southbound;
pub mod switch;

/// A connection.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Link {
    /// It has not been tried to the end yet.
    #[default]
    Unknown,
    /// It is there.
    Up,
    /// It is not there.
    Down {
        /// Why not.
        why: String,
        /// It has been there before.
        lost: bool,
    },
}

impl Link {
    /// Whether it is there.
    #[must_use]
    pub fn is_up(&self) -> bool {
        *self == Self::Up
    }

    /// It is not there, and whether it was depends on what was known. Why it went stays: each try
    /// may fail in another way, and each change of a status is a write of every node.
    #[must_use]
    pub fn down(&self, why: String) -> Self {
        match self {
            Self::Up => Self::Down { why, lost: true },
            Self::Unknown => Self::Down { why, lost: false },
            Self::Down { .. } => self.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn why_a_connection_went_stays_until_it_is_back() {
        let lost = Link::Up.down("closed".into());
        assert_eq!(lost.down("refused".into()), lost);
        let never = Link::Unknown.down("refused".into());
        assert!(matches!(never, Link::Down { lost: false, .. }));
        assert!(!lost.is_up() && Link::Up.is_up());
    }
}
