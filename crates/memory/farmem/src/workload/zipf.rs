//! Random choice of the key of an operation.

/// Draws ranks by Zipf's law: rank `k` of `1..=n` with a probability proportional to `k^-s`. Uses rejection-inversion
/// (Hörmann and Derflinger, ACM TOMACS 6(3), 1996), which needs a few powers per draw and no table.
///
/// Powers and logarithms come from the crate `libm`, whose results are the same on all platforms. Results of the
/// standard library depend on the platform, and a different last digit could change a drawn rank.
#[derive(Clone, Copy, Debug)]
pub struct Zipf {
    keys: f64,
    exponent: f64,
    /// Lower bound of the random integrals that `draw` inverts; `to` is their upper bound, at `n + 1/2`.
    from: f64,
    to: f64,
    shortcut: f64,
}

impl Zipf {
    /// Returns a distribution over `keys` keys, at least 1, with this exponent. An exponent of 0 means a uniform
    /// distribution.
    pub fn new(keys: u64, exponent: f64) -> Self {
        let keys = keys.max(1) as f64;
        let mut zipf = Self { keys, exponent, from: 0.0, to: 0.0, shortcut: 0.0 };
        zipf.from = zipf.integral(1.5) - 1.0;
        zipf.to = zipf.integral(keys + 0.5);
        zipf.shortcut = 2.0 - zipf.inverse(zipf.integral(2.5) - zipf.density(2.0));
        zipf
    }

    fn density(&self, x: f64) -> f64 {
        libm::pow(x, -self.exponent)
    }

    /// Returns the antiderivative of the density at `x`, up to a constant.
    fn integral(&self, x: f64) -> f64 {
        let log = libm::log(x);
        let power = (1.0 - self.exponent) * log;
        if power.abs() > 1e-8 { log * libm::expm1(power) / power } else { log * (1.0 + power / 2.0) }
    }

    fn inverse(&self, x: f64) -> f64 {
        let t = (x * (1.0 - self.exponent)).max(-1.0);
        if t.abs() > 1e-8 { libm::exp(x * libm::log1p(t) / t) } else { libm::exp(x * (1.0 - t / 2.0)) }
    }

    /// Returns a rank from 0, the most frequent one, to `n - 1`. `random` returns numbers from 0 to 1.
    pub fn draw(&self, mut random: impl FnMut() -> f64) -> u64 {
        loop {
            let u = self.to + random() * (self.from - self.to);
            let x = self.inverse(u);
            let rank = (x + 0.5).floor().clamp(1.0, self.keys);
            if rank - x <= self.shortcut || u >= self.integral(rank + 0.5) - self.density(rank) {
                return rank as u64 - 1;
            }
        }
    }

    /// Returns the share of all draws that a rank from 0 gets, as a sum over all keys.
    pub fn share(&self, rank: u64) -> f64 {
        let sum: f64 = (1..=self.keys as u64).map(|k| self.density(k as f64)).sum();
        self.density(rank as f64 + 1.0) / sum
    }
}

/// Random number generator with a seed (xorshift64*, Vigna 2014).
#[derive(Clone, Copy, Debug)]
pub struct Random(u64);

impl Random {
    /// Returns a generator with this seed. The seed passes through splitmix64, so that similar seeds give unlike
    /// numbers.
    pub fn new(seed: u64) -> Self {
        let mut state = seed;
        Self(doorbell_wire::split_mix(&mut state).max(1))
    }

    /// Returns the next 64-bit number.
    pub fn next_u64(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// Returns a number from 0 up to, but not including, `end`.
    pub fn below(&mut self, end: u64) -> u64 {
        ((u128::from(self.next_u64()) * u128::from(end)) >> 64) as u64
    }

    /// Returns the time to the next event of a Poisson process with this mean time between events.
    pub fn exponential(&mut self, mean: f64) -> f64 {
        -libm::log(1.0 - self.unit()) * mean
    }

    /// Returns a number from 0 up to, but not including, 1.
    pub fn unit(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1_u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exponential_draws_have_the_expected_mean_and_spread() {
        let mut random = Random::new(7);
        let times: Vec<f64> = (0..20_000).map(|_| random.exponential(50.0)).collect();
        let mean = times.iter().sum::<f64>() / times.len() as f64;
        let variance = times.iter().map(|time| (time - mean).powi(2)).sum::<f64>() / times.len() as f64;
        assert!((48.0..52.0).contains(&mean) && (47.0..53.0).contains(&variance.sqrt()), "{mean}, {variance}");
        assert!(times.iter().all(|&time| time >= 0.0 && time.is_finite()));
    }

    #[test]
    fn ranks_follow_the_zipf_distribution() {
        for exponent in [0.0, 0.6, 0.9, 0.99, 1.0, 1.2, 1.5] {
            let zipf = Zipf::new(1024, exponent);
            let mut random = Random::new(7);
            let draws = 400_000;
            let mut counted = vec![0_u32; 1024];
            for _ in 0..draws {
                counted[zipf.draw(|| random.unit()) as usize] += 1;
            }
            for rank in [0, 1, 2, 10, 100, 1023] {
                let expected = zipf.share(rank) * f64::from(draws);
                let seen = f64::from(counted[rank as usize]);
                // Allow five standard deviations of a binomial count.
                let slack = 5.0 * expected.sqrt() + 1.0;
                assert!((seen - expected).abs() < slack, "s = {exponent}, rank {rank}: {seen} of {expected}");
            }
        }
        let mut random = Random::new(1);
        assert!((0..10_000).all(|_| Zipf::new(10_000_000, 0.99).draw(|| random.unit()) < 10_000_000));
        assert_eq!(Zipf::new(1, 0.99).draw(|| random.unit()), 0);
    }

    /// Digests of simulations depend on these ranks. Different exponents use different powers and logarithms.
    #[test]
    fn a_seed_draws_the_same_ranks_on_every_machine() {
        for (exponent, first) in [
            (0.0, [80589, 43736, 51389, 72889, 19633, 41797, 69796, 20463, 5595, 33088, 67193, 49970]),
            (0.6, [58576, 12968, 19280, 45686, 1846, 11602, 41041, 2039, 100, 6547, 37361, 17995]),
            (0.99, [10661, 131, 333, 4325, 6, 103, 3003, 6, 0, 35, 2207, 280]),
            (1.0, [9535, 109, 277, 3753, 5, 86, 2580, 6, 0, 29, 1883, 233]),
            (1.5, [14, 1, 1, 7, 0, 1, 5, 0, 0, 0, 4, 1]),
        ] {
            let zipf = Zipf::new(100_000, exponent);
            let mut random = Random::new(42);
            assert_eq!([(); 12].map(|()| zipf.draw(|| random.unit())), first, "s = {exponent}");
        }
    }
}
