use std::fmt;
use std::str::FromStr;
use std::time::Duration;

pub(crate) const USAGE: &str = "\
usage: soak [--minutes N | --seconds N] [--seed N] [--servers N] [--clients N] [--pause MILLISECONDS] [--sabotage HOW]

  --minutes, --seconds   how long things go wrong (default 1 minute)
  --seed                 what goes wrong (default: another one each time; it is printed)
  --servers              server processes (default 3)
  --clients              clients that each do one operation after another (default 48)
  --pause                between two faults, on average (default 400)
  --sabotage             break the promise, to see that it is noticed: two-keys, extra-row, missing-row,
                         other-answer, open-transaction, lost-message, repeated-message or swapped-messages";

#[derive(Debug, Clone)]
pub(crate) struct Arguments {
    pub(crate) length: Duration,
    pub(crate) seed: u64,
    pub(crate) servers: usize,
    pub(crate) clients: usize,
    pub(crate) pause: Duration,
    pub(crate) sabotage: Option<Sabotage>,
}

/// How the promise is broken on purpose.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sabotage {
    /// One client in ten makes a new key for another attempt at the same operation.
    TwoKeys,
    /// An order is there twice.
    ExtraRow,
    /// An order is gone.
    MissingRow,
    /// A retry got another answer.
    OtherAnswer,
    /// Somebody forgot a transaction.
    OpenTransaction,
    /// A message never came.
    LostMessage,
    /// A message came again and again.
    RepeatedMessage,
    /// Two messages of a group came in the wrong order.
    SwappedMessages,
}

impl Arguments {
    pub(crate) fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Self, String> {
        let mut parsed = Self {
            length: Duration::from_secs(60),
            seed: fastrand::u64(..1_000_000_000),
            servers: 3,
            clients: 48,
            pause: Duration::from_millis(400),
            sabotage: None,
        };
        while let Some(name) = arguments.next() {
            let value = arguments.next().ok_or_else(|| format!("`{name}` must have a value"))?;
            match name.as_str() {
                "--minutes" => parsed.length = Duration::from_secs_f64(number::<f64>(&name, &value)? * 60.0),
                "--seconds" => parsed.length = Duration::from_secs_f64(number(&name, &value)?),
                "--seed" => parsed.seed = number(&name, &value)?,
                "--servers" => parsed.servers = number::<usize>(&name, &value)?.max(1),
                "--clients" => parsed.clients = number::<usize>(&name, &value)?.max(1),
                "--pause" => parsed.pause = Duration::from_millis(number::<u64>(&name, &value)?.max(1)),
                "--sabotage" => parsed.sabotage = Some(value.parse()?),
                _ => return Err(format!("`{name}` is unknown")),
            }
        }
        Ok(parsed)
    }
}

fn number<T: FromStr>(name: &str, value: &str) -> Result<T, String> {
    value.parse().map_err(|_| format!("`{name}` must be a number, not `{value}`"))
}

impl FromStr for Sabotage {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "two-keys" => Ok(Self::TwoKeys),
            "extra-row" => Ok(Self::ExtraRow),
            "missing-row" => Ok(Self::MissingRow),
            "other-answer" => Ok(Self::OtherAnswer),
            "open-transaction" => Ok(Self::OpenTransaction),
            "lost-message" => Ok(Self::LostMessage),
            "repeated-message" => Ok(Self::RepeatedMessage),
            "swapped-messages" => Ok(Self::SwappedMessages),
            _ => Err(format!("`{text}` is no sabotage that we know")),
        }
    }
}

impl fmt::Display for Arguments {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { length, seed, servers, clients, pause, sabotage } = self;
        write!(
            f,
            "seed {seed}: {servers} servers, {clients} clients, a fault every {pause:?} on average, for {} s",
            length.as_secs()
        )?;
        sabotage.map_or(Ok(()), |sabotage| write!(f, "; sabotaged by {sabotage:?}"))
    }
}
