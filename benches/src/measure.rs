//! Alternating slices, and what may be concluded from them.

use sqlx::PgPool;

use crate::Result;
use crate::load::Throughput;
use crate::processor::Processor;
use crate::progress::Progress;

/// The samples of one variant, one a round.
#[derive(Debug, Clone)]
pub struct Series(pub Vec<f64>);

/// A ratio of two variants: the median over the rounds, and the middle half of them.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Ratio {
    /// Half of the rounds are above, half below.
    pub median: f64,
    /// A quarter of the rounds is below.
    pub lower: f64,
    /// A quarter of the rounds is above.
    pub upper: f64,
}

impl Series {
    /// The middle sample.
    #[must_use]
    pub fn median(&self) -> f64 {
        quantile(&self.0, 0.5)
    }

    /// This variant against another, round by round: neighbours in time met the same noise.
    #[must_use]
    pub fn against(&self, other: &Self) -> Ratio {
        let ratios: Vec<_> = self.0.iter().zip(&other.0).map(|(own, other)| own / other).collect();
        Ratio { median: quantile(&ratios, 0.5), lower: quantile(&ratios, 0.25), upper: quantile(&ratios, 0.75) }
    }
}

/// The processor time of requests, variant by variant.
#[derive(Debug, Clone)]
pub struct Spent<const N: usize>([Vec<f64>; N]);

impl<const N: usize> Default for Spent<N> {
    fn default() -> Self {
        Self(std::array::from_fn(|_| Vec::new()))
    }
}

impl<const N: usize> Spent<N> {
    /// Runs a slice of a variant, and notes what each of its requests took of the processors.
    ///
    /// # Errors
    /// The slice's.
    pub async fn note(
        &mut self,
        variant: usize,
        pool: &PgPool,
        slice: impl Future<Output = Result<Throughput>>,
    ) -> Result<f64> {
        let processor = Processor::of(pool).await?;
        let before = processor.microseconds();
        let throughput = slice.await?;
        let spent = processor.microseconds().zip(before).map(|(after, before)| after - before);
        self.0[variant].extend(spent.map(|spent| spent / throughput.requests as f64));
        Ok(throughput.rate)
    }

    /// The median of a variant, for people.
    #[must_use]
    pub fn median(&self, variant: usize) -> String {
        let median = quantile(&self.0[variant], 0.5);
        if median.is_finite() { format!("{median:.0} µs") } else { "–".to_owned() }
    }
}

/// Linear between the two nearest samples; not a number without samples.
#[must_use]
pub fn quantile(samples: &[f64], share: f64) -> f64 {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    let Some(last) = sorted.len().checked_sub(1) else { return f64::NAN };
    let place = share * last as f64;
    let (below, above) = (sorted[place.floor() as usize], sorted[place.ceil() as usize]);
    below + (above - below) * place.fract()
}

/// Runs `N` variants in turn, forwards and backwards, after one round that does not count.
///
/// # Errors
/// The first error of a slice.
pub async fn alternate<const N: usize>(
    rounds: usize,
    progress: &Progress,
    mut slice: impl AsyncFnMut(usize) -> Result<f64>,
) -> Result<[Series; N]> {
    let mut series = std::array::from_fn(|_| Series(Vec::with_capacity(rounds)));
    progress.stage("warming up");
    for variant in 0..N {
        slice(variant).await?;
    }
    for round in 0..rounds {
        progress.round(round, rounds);
        for step in 0..N {
            let variant = if round % 2 == 0 { step } else { N - 1 - step };
            series[variant].0.push(slice(variant).await?);
        }
    }
    Ok(series)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_pair_the_rounds() {
        let (fast, slow) = (Series(vec![10.0, 100.0, 30.0]), Series(vec![20.0, 100.0, 40.0]));
        let ratio = fast.against(&slow);
        assert_eq!(ratio, Ratio { median: 0.75, lower: 0.625, upper: 0.875 });
        assert_eq!(slow.median(), 40.0);
    }

    #[tokio::test]
    async fn every_variant_runs_once_a_round_and_the_warm_up_does_not_count() {
        let mut order = Vec::new();
        let run = async |variant: usize| {
            order.push(variant);
            Ok(order.len() as f64)
        };
        let [first, second] = alternate(2, &Progress::of("test"), run).await.expect("slices");
        assert_eq!(order, [0, 1, 0, 1, 1, 0]);
        assert_eq!((first.0, second.0), (vec![3.0, 6.0], vec![4.0, 5.0]));
    }
}
