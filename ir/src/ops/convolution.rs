//! The geometry that a convolution, its data gradient and its weight gradient share.

use super::Axes;

/// How windows move over the spatial dims.
#[derive(Clone, Copy, Debug)]
pub struct Window<'a> {
    /// Elements between the starts of neighbouring windows.
    pub stride: &'a Axes,
    /// Zeros before and after each spatial dim.
    pub padding: &'a Axes,
    /// Elements between neighbouring taps.
    pub dilation: &'a Axes,
}

/// Extents of a convolution of up to three spatial dims; missing ones come first and are 1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Samples of the batch.
    pub samples: usize,
    /// Groups of channels, each convolved by itself.
    pub groups: usize,
    /// Input channels of a group.
    pub channels: usize,
    /// Output channels of a group.
    pub filters: usize,
    /// Spatial extents of the input.
    pub input: [usize; 3],
    /// Spatial extents of the kernel.
    pub kernel: [usize; 3],
    /// Spatial extents of the output.
    pub output: [usize; 3],
    stride: [usize; 3],
    padding: [usize; 3],
    dilation: [usize; 3],
}

fn three(list: &[usize], fill: usize) -> [usize; 3] {
    let mut all = [fill; 3];
    let skip = 3usize.saturating_sub(list.len());
    all[skip..].iter_mut().zip(list).for_each(|(slot, &value)| *slot = value);
    all
}

fn volume(extents: [usize; 3]) -> usize {
    extents.iter().product()
}

impl Geometry {
    /// For `x[N, C, …]`, `w[O, C / groups, …]` and `y[N, O, …]`, whose types have been inferred.
    pub fn new(x: &[usize], w: &[usize], y: &[usize], groups: usize, window: Window<'_>) -> Geometry {
        Geometry {
            samples: x[0],
            groups,
            channels: x[1] / groups.max(1),
            filters: w[0] / groups.max(1),
            input: three(&x[2..], 1),
            kernel: three(&w[2..], 1),
            output: three(&y[2..], 1),
            stride: three(window.stride, 1),
            padding: three(window.padding, 0),
            dilation: three(window.dilation, 1),
        }
    }

    /// Elements of one input channel.
    pub fn input_len(&self) -> usize {
        volume(self.input)
    }

    /// Taps of the kernel.
    pub fn taps(&self) -> usize {
        volume(self.kernel)
    }

    /// Elements of one output channel.
    pub fn output_len(&self) -> usize {
        volume(self.output)
    }

    /// Where in an input channel the tap of the window at `out` reads, both in row-major order; none in the padding.
    pub fn source(&self, out: usize, tap: usize) -> Option<usize> {
        let [mut out, mut tap] = [out, tap];
        let (mut at, mut step) = (0, 1);
        for i in (0..3).rev() {
            let (window, offset) = (out % self.output[i], tap % self.kernel[i]);
            (out, tap) = (out / self.output[i], tap / self.kernel[i]);
            let position = (window * self.stride[i] + offset * self.dilation[i]).checked_sub(self.padding[i])?;
            if position >= self.input[i] {
                return None;
            }
            at += position * step;
            step *= self.input[i];
        }
        Some(at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_leave_out_the_padding() {
        let list = |value: usize| Axes::from_slice(&[value]);
        let window = Window { stride: &list(2), padding: &list(1), dilation: &list(1) };
        let geometry = Geometry::new(&[1, 1, 5], &[1, 1, 3], &[1, 1, 3], 1, window);
        let read: Vec<Vec<Option<usize>>> = (0..3).map(|out| (0..3).map(|tap| geometry.source(out, tap)).collect()).collect();
        assert_eq!(read, [[None, Some(0), Some(1)], [Some(1), Some(2), Some(3)], [Some(3), Some(4), None]]);
    }
}
