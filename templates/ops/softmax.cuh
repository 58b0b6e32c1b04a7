// softmax: exp(x - max) / sum. Replaces x by the part that does not need the sum and returns its
// term of the sum.
__device__ Compute term(Compute& x, Compute shift) {
  x = exponential(x - shift);
  return x;
}

// What the finished sum of a row contributes to each of its results.
__device__ Compute factor_of(Compute sum) { return 1 / sum; }

__device__ Compute finish(Compute kept, Compute factor) { return kept * factor; }
