//! Runs a fuzz target on a stable toolchain: over the inputs of a corpus, and over changed copies of them.
//!
//! It does not see which code an input reaches, so it finds less than libFuzzer does in the same time. It
//! runs the same targets.
//!
//!     TARGET --seconds 60 [--seed N] [--failed DIR] [CORPUS...]   files, or directories of files
//!     TARGET --seconds 0 FILE                                     one input, again

use std::cell::Cell;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// The longest input.
const LONGEST: usize = 64 * 1024;
/// How long one input may take.
const HANG: Duration = Duration::from_secs(20);

/// What a target can take.
pub trait Input<'a> {
    /// Reads it from bytes; `None` if these are not enough.
    fn read(bytes: &'a [u8]) -> Option<Self>
    where
        Self: Sized;
}

impl<'a> Input<'a> for &'a [u8] {
    fn read(bytes: &'a [u8]) -> Option<Self> {
        Some(bytes)
    }
}

/// The first byte says how long the text is.
impl<'a> Input<'a> for (&'a str, &'a [u8]) {
    fn read(bytes: &'a [u8]) -> Option<Self> {
        let (length, rest) = bytes.split_first()?;
        let (text, bytes) = rest.split_at(rest.len().min(usize::from(*length)));
        let text = text.utf8_chunks().next().map_or("", |chunk| chunk.valid());
        Some((text, bytes))
    }
}

/// Makes a program of a target.
#[macro_export]
macro_rules! fuzz_target {
    (|$input:ident: $type:ty| $body:block) => {
        fn target(bytes: &[u8]) {
            if let Some($input) = <$type as $crate::Input<'_>>::read(bytes) {
                $body
            }
        }

        #[unsafe(no_mangle)]
        pub extern "C" fn main(_: i32, _: *const *const u8) -> i32 {
            $crate::run(target)
        }
    };
}

struct Options {
    seconds: u64,
    seed: u64,
    failed: PathBuf,
    corpus: Vec<PathBuf>,
}

fn options() -> Result<Options, String> {
    let mut options = Options {
        seconds: 60,
        seed: u64::from(std::process::id()),
        failed: PathBuf::from("."),
        corpus: Vec::new(),
    };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let mut value = || words.next().ok_or(format!("{word} needs a value"));
        let number = |text: String| text.parse().map_err(|_| format!("{text} is not a number"));
        match word.as_str() {
            "--seconds" => options.seconds = value().and_then(number)?,
            "--seed" => options.seed = value().and_then(number)?,
            "--failed" => options.failed = value()?.into(),
            path => options.corpus.push(path.into()),
        }
    }
    Ok(options)
}

/// All files, in order.
fn files(path: &Path, found: &mut Vec<Vec<u8>>) -> std::io::Result<()> {
    if path.is_dir() {
        let mut inside: Vec<PathBuf> = fs::read_dir(path)?
            .map(|entry| entry.map(|entry| entry.path()))
            .collect::<Result<_, _>>()?;
        inside.sort();
        return inside.iter().try_for_each(|path| files(path, found));
    }
    found.push(fs::read(path)?);
    Ok(())
}

/// Runs a target. The status of the process.
pub fn run(target: fn(&[u8])) -> i32 {
    let done = options().and_then(|options| {
        let mut corpus = Vec::new();
        for path in &options.corpus {
            files(path, &mut corpus).map_err(|error| format!("{}: {error}", path.display()))?;
        }
        explore(target, &options, corpus)
    });
    match done {
        Ok(count) => {
            println!("{count} inputs");
            0
        }
        Err(error) => {
            eprintln!("error: {error}");
            1
        }
    }
}

fn explore(target: fn(&[u8]), options: &Options, corpus: Vec<Vec<u8>>) -> Result<u64, String> {
    let end = Instant::now() + Duration::from_secs(options.seconds);
    // What runs now and since when, for the one that looks out for a target that hangs.
    let running = Arc::new(Mutex::new((Instant::now(), Vec::new())));
    let (watched, failed) = (Arc::clone(&running), options.failed.clone());
    std::thread::spawn(move || {
        loop {
            std::thread::sleep(Duration::from_secs(1));
            let (since, input) = &*watched.lock().unwrap();
            if since.elapsed() > HANG {
                eprintln!(
                    "error: an input takes more than {HANG:?}: {}",
                    keep(&failed, input)
                );
                std::process::exit(1);
            }
        }
    });
    let mut count = 0;
    let mut attempt = |input: &[u8]| {
        *running.lock().unwrap() = (Instant::now(), input.to_vec());
        count += 1;
        catch_unwind(AssertUnwindSafe(|| target(input)))
            .map_err(|_| format!("the target panicked: {}", keep(&options.failed, input)))
    };
    for input in &corpus {
        attempt(input)?;
    }
    let random = Random(Cell::new(options.seed | 1));
    while Instant::now() < end {
        attempt(&random.input(&corpus))?;
    }
    Ok(count)
}

/// Writes an input to a file, and says how to run it again.
fn keep(directory: &Path, input: &[u8]) -> String {
    let name = std::env::args().next().unwrap_or_default();
    let name = Path::new(&name)
        .file_name()
        .unwrap_or_default()
        .to_string_lossy();
    let sum = input.iter().fold(0xcbf2_9ce4_8422_2325, |sum: u64, byte| {
        (sum ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3)
    });
    let path = directory.join(format!("{name}-{sum:016x}"));
    let written = fs::create_dir_all(directory).and_then(|()| fs::write(&path, input));
    match written {
        Ok(()) => format!("run it again with --seconds 0 {}", path.display()),
        Err(error) => format!("{error}: {input:?}"),
    }
}

/// Numbers that are random enough to try things (xorshift).
struct Random(Cell<u64>);

impl Random {
    fn next(&self) -> u64 {
        let mut state = self.0.get();
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        self.0.set(state);
        state
    }

    fn below(&self, end: usize) -> usize {
        usize::try_from(self.next() % u64::try_from(end.max(1)).unwrap_or(1)).unwrap_or(0)
    }

    fn byte(&self) -> u8 {
        self.next().to_le_bytes()[3]
    }

    fn bytes(&self, most: usize) -> Vec<u8> {
        (0..self.below(most)).map(|_| self.byte()).collect()
    }

    /// One of the corpus with some changes, or nothing but noise.
    fn input(&self, corpus: &[Vec<u8>]) -> Vec<u8> {
        let mut input = match corpus.get(self.below(corpus.len() + corpus.len() / 8 + 1)) {
            Some(input) => input.clone(),
            None => self.bytes(512),
        };
        for _ in 0..=self.below(8) {
            self.change(&mut input, corpus);
        }
        input.truncate(LONGEST);
        input
    }

    fn change(&self, input: &mut Vec<u8>, corpus: &[Vec<u8>]) {
        let at = self.below(input.len());
        let length = self.below(64).min(input.len() - at);
        match self.below(8) {
            0 => input.truncate(at),
            1 => drop(input.drain(at..at + length)),
            2 => drop(input.splice(at..at, self.bytes(64))),
            3 => {
                let again: Vec<u8> = input[at..at + length].to_vec();
                input.splice(at..at, again);
            }
            4 => {
                // A part of another one.
                if let Some(other) = corpus.get(self.below(corpus.len())) {
                    let from = self.below(other.len());
                    let to = (from + self.below(256)).min(other.len());
                    input.splice(at..at + length, other[from..to].iter().copied());
                }
            }
            5 => {
                // A number where a length may be.
                const NUMBERS: [u32; 8] =
                    [0, 1, 4, 0xff, 0xffff, 0x7fff_ffff, 0x8000_0000, 0xffff_ffff];
                let number = NUMBERS[self.below(NUMBERS.len())].to_be_bytes();
                for (byte, new) in input[at..].iter_mut().zip(number) {
                    *byte = new;
                }
            }
            6 => {
                if let Some(byte) = input.get_mut(at) {
                    *byte ^= 1 << self.below(8);
                }
            }
            _ => {
                if let Some(byte) = input.get_mut(at) {
                    *byte = self.byte();
                }
            }
        }
    }
}
