// log_softmax: (x - max) - log(sum). Replaces x by the part that does not need the sum and returns
// its term of the sum.
__device__ Compute term(Compute& x, Compute shift) {
  x -= shift;
  return exponential(x);
}

// What the finished sum of a row contributes to each of its results.
__device__ Compute factor_of(Compute sum) { return log(sum); }

// Not x - (max + log(sum)): where max is large that sum would round log(sum) away.
__device__ Compute finish(Compute kept, Compute factor) { return kept - factor; }
