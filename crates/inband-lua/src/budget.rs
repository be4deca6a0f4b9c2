//! What a script may still use.

use std::cell::Cell;

/// Counts down the steps of a script.
#[derive(Debug)]
pub struct Budget {
    steps: Cell<u64>,
    is_over: Cell<Option<Over>>,
}

/// Why a script was ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Over {
    Steps,
    Memory,
    Reply,
    /// The host cannot go on.
    Host,
}

impl std::fmt::Display for Over {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the script is over a limit")
    }
}

impl std::error::Error for Over {}

impl Budget {
    pub fn new(steps: u64) -> Self {
        Self {
            steps: Cell::new(steps),
            is_over: Cell::new(None),
        }
    }

    /// Use this many steps.
    pub fn charge(&self, steps: u64) -> Result<(), Over> {
        if let Some(over) = self.is_over.get() {
            return Err(over);
        }
        match self.steps.get().checked_sub(steps) {
            Some(left) => {
                self.steps.set(left);
                Ok(())
            }
            None => Err(self.end(Over::Steps)),
        }
    }

    /// The steps that are left.
    pub fn left(&self) -> u64 {
        self.steps.get()
    }

    pub fn end(&self, why: Over) -> Over {
        let why = self.is_over.get().unwrap_or(why);
        self.is_over.set(Some(why));
        why
    }

    /// Why the script was ended, if it was.
    pub fn is_over(&self) -> Option<Over> {
        self.is_over.get()
    }
}
