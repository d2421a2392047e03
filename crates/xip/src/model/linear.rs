//! Least squares with few unknowns: eigenvalues of small symmetric matrices, and solutions without negative values.
//!
//! What must hold: nothing here divides by what may be nothing: directions in which the data say (almost) nothing are left out of a solution, and
//! [`Eigen`] is how a caller learns of them.

/// A small square matrix, by rows.
pub type Matrix = Vec<Vec<f64>>;

/// Share of the greatest eigenvalue below which a direction counts as nothing.
const NOTHING: f64 = 1e-9;

/// The eigenvalues of a symmetric matrix, and an eigenvector for each.
#[derive(Debug)]
pub struct Eigen {
    /// In no order.
    pub values: Vec<f64>,
    /// `vectors[i]` belongs to `values[i]`; of length one.
    pub vectors: Matrix,
}

impl Eigen {
    /// By Jacobi's rotations: slow for large matrices, exact to rounding for small ones, whatever their rank.
    pub fn of(symmetric: &Matrix) -> Eigen {
        let n = symmetric.len();
        let mut a = symmetric.clone();
        let mut v: Matrix = (0..n).map(|i| (0..n).map(|j| f64::from(u8::from(i == j))).collect()).collect();
        for _sweep in 0..60 {
            let off: f64 = (0..n).flat_map(|i| (0..i).map(move |j| (i, j))).map(|(i, j)| a[i][j] * a[i][j]).sum();
            let diagonal: f64 = (0..n).map(|i| a[i][i] * a[i][i]).sum();
            if off <= 1e-30 * diagonal {
                break;
            }
            for p in 0..n {
                for q in p + 1..n {
                    rotate(&mut a, &mut v, p, q);
                }
            }
        }
        Eigen { values: (0..n).map(|i| a[i][i]).collect(), vectors: v }
    }

    /// What an eigenvalue must exceed for its direction to say something.
    pub fn least(&self) -> f64 {
        NOTHING * self.values.iter().fold(0.0f64, |a, b| a.max(*b))
    }

    /// The inverse, without the directions that are nothing.
    pub fn inverse(&self) -> Matrix {
        let n = self.values.len();
        let least = self.least();
        let mut inverse = vec![vec![0.0; n]; n];
        for (value, vector) in self.values.iter().zip(&self.vectors).filter(|(value, _)| **value > least) {
            for i in 0..n {
                for j in 0..n {
                    inverse[i][j] += vector[i] * vector[j] / value;
                }
            }
        }
        inverse
    }
}

/// Makes `a[p][q]` zero; the rows of `v` follow.
fn rotate(a: &mut Matrix, v: &mut Matrix, p: usize, q: usize) {
    if a[p][q] == 0.0 {
        return;
    }
    let theta = (a[q][q] - a[p][p]) / (2.0 * a[p][q]);
    let t = if theta == 0.0 { 1.0 } else { theta.signum() / (theta.abs() + (theta * theta + 1.0).sqrt()) };
    let c = 1.0 / (t * t + 1.0).sqrt();
    let s = t * c;
    for row in a.iter_mut() {
        (row[p], row[q]) = (c * row[p] - s * row[q], s * row[p] + c * row[q]);
    }
    for k in 0..a.len() {
        (a[p][k], a[q][k]) = (c * a[p][k] - s * a[q][k], s * a[p][k] + c * a[q][k]);
        (v[p][k], v[q][k]) = (c * v[p][k] - s * v[q][k], s * v[p][k] + c * v[q][k]);
    }
}

/// AᵀA and Aᵀy of rows and their right sides.
pub fn normal(rows: &[Vec<f64>], right: &[f64]) -> (Matrix, Vec<f64>) {
    let n = rows.first().map_or(0, Vec::len);
    let mut gram = vec![vec![0.0; n]; n];
    let mut image = vec![0.0; n];
    for (row, y) in rows.iter().zip(right) {
        for i in 0..n {
            image[i] += row[i] * y;
            for j in 0..n {
                gram[i][j] += row[i] * row[j];
            }
        }
    }
    (gram, image)
}

/// The x, none of it negative, that comes closest to Ax = y, from AᵀA and Aᵀy; Lawson and Hanson's active set. Columns should have about the
/// same length.
pub fn non_negative(gram: &Matrix, image: &[f64]) -> Vec<f64> {
    let n = image.len();
    let mut x = vec![0.0; n];
    let mut free: Vec<usize> = Vec::new();
    let least = 1e-10 * image.iter().fold(0.0f64, |a, b| a.max(b.abs()));
    for _ in 0..3 * n {
        let pull = |x: &[f64], i: usize| image[i] - (0..n).map(|j| gram[i][j] * x[j]).sum::<f64>();
        let held = (0..n).filter(|i| !free.contains(i));
        let Some(next) = held.max_by(|a, b| pull(&x, *a).total_cmp(&pull(&x, *b))).filter(|i| pull(&x, *i) > least) else {
            break;
        };
        free.push(next);
        while !free.is_empty() {
            let wanted = solve_part(gram, image, &free);
            let short = |k: &usize| wanted[*k] <= 0.0;
            if !(0..free.len()).any(|k| short(&k)) {
                (0..n).for_each(|i| x[i] = free.iter().position(|f| *f == i).map_or(0.0, |k| wanted[k]));
                break;
            }
            // As far as nothing turns negative; what reached zero is held there again.
            let step = |k: usize| x[free[k]] / (x[free[k]] - wanted[k]).max(f64::MIN_POSITIVE);
            let far = (0..free.len()).filter(short).map(step).fold(1.0, f64::min);
            (0..free.len()).for_each(|k| x[free[k]] += far * (wanted[k] - x[free[k]]));
            let at_zero = |i: usize| x[i] <= 1e-14;
            let leaving: Vec<usize> = free.iter().copied().filter(|i| at_zero(*i)).collect();
            leaving.iter().for_each(|i| x[*i] = 0.0);
            free.retain(|i| !leaving.contains(i));
        }
    }
    x
}

/// The unconstrained solution for the unknowns `free`, all others being zero.
fn solve_part(gram: &Matrix, image: &[f64], free: &[usize]) -> Vec<f64> {
    let inverse = Eigen::of(&part(gram, free)).inverse();
    inverse.iter().map(|row| row.iter().zip(free).map(|(v, i)| v * image[*i]).sum()).collect()
}

/// The rows and columns `of` of a matrix.
fn part(matrix: &Matrix, of: &[usize]) -> Matrix {
    of.iter().map(|i| of.iter().map(|j| matrix[*i][*j]).collect()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn eigenvalues_of_a_known_matrix() {
        let eigen = Eigen::of(&vec![vec![2.0, 1.0, 0.0], vec![1.0, 2.0, 0.0], vec![0.0, 0.0, 5.0]]);
        let mut values = eigen.values.clone();
        values.sort_by(f64::total_cmp);
        assert!(values.iter().zip([1.0, 3.0, 5.0]).all(|(a, b)| (a - b).abs() < 1e-12), "{values:?}");
    }

    #[test]
    fn what_would_be_negative_is_zero() {
        // y = 2 a - b, a and b at right angles.
        let rows = vec![vec![1.0, 0.0], vec![0.0, 1.0]];
        let (gram, image) = normal(&rows, &[2.0, -1.0]);
        assert_eq!(non_negative(&gram, &image), [2.0, 0.0]);
    }

    proptest! {
        /// The conditions of Karush, Kuhn and Tucker: free unknowns have no gradient, held ones only an inward one.
        #[test]
        fn solutions_are_optimal(rows in prop::collection::vec(prop::collection::vec(-1.0f64..1.0, 4), 1..12), seed in 0u8..2) {
            let right: Vec<f64> = rows.iter().map(|r| r[0] - r[1] + 0.5 * r[2] + f64::from(seed) * r[3] * r[3]).collect();
            let (gram, image) = normal(&rows, &right);
            let x = non_negative(&gram, &image);
            for i in 0..4 {
                let gradient = image[i] - (0..4).map(|j| gram[i][j] * x[j]).sum::<f64>();
                prop_assert!(x[i] >= 0.0);
                prop_assert!(gradient < 1e-6, "{i}: {gradient} {x:?}");
                prop_assert!(x[i] == 0.0 || gradient.abs() < 1e-6, "{i}: {gradient} {x:?}");
            }
        }
    }
}
