// What a call of a project takes the host, beside a bare cudaLaunchKernelExC of a kernel that does
// nothing: medians of rounds, in turns. See host_of_project.py.
#include <cuda_bf16.h>
#include <timed.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <vector>

namespace {

constexpr int kCalls = 400;  // a round; the queue of launches has room for more
constexpr int kRounds = 60;
constexpr int64_t kRows = 8, kCols = 4096;

__global__ void nothing(const __nv_bfloat16*, __nv_bfloat16*, long long) {}

template <typename Call>
double microseconds(const Call& call) {
  std::vector<double> times;
  for (int round = 0; round < kRounds; ++round) {
    cudaDeviceSynchronize();
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < kCalls; ++i) call();
    const std::chrono::duration<double, std::micro> spent =
        std::chrono::steady_clock::now() - start;
    times.push_back(spent.count() / kCalls);
  }
  cudaDeviceSynchronize();
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

}  // namespace

int main() {
  __nv_bfloat16 *x = nullptr, *y = nullptr;
  cudaMalloc(&x, kRows * kCols * sizeof(*x));
  cudaMalloc(&y, kRows * kCols * sizeof(*y));
  cudaMemset(x, 0, kRows * kCols * sizeof(*x));
  cudaStream_t stream = nullptr;
  cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
  int failed = 0;
  const auto bare = [&] {
    long long rows = kRows;
    void* arguments[] = {&x, &y, &rows};
    cudaLaunchAttribute attribute{};
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config{};
    config.gridDim = kRows;
    config.blockDim = 256;
    config.stream = stream;
    config.attrs = &attribute;
    config.numAttrs = 1;
    failed += cudaLaunchKernelExC(&config, reinterpret_cast<const void*>(nothing), arguments) !=
              cudaSuccess;
  };
  const auto one = [&] {
    failed += timed_softmax_bf16_4096(x, y, kRows, nullptr, 0, stream) != TIMED_OK;
  };
  const auto any = [&] {
    failed += timed_softmax(TIMED_BFLOAT16, TIMED_BFLOAT16, kCols, x, y, kRows, nullptr, 0,
                            stream) != TIMED_OK;
  };
  bare(), one(), any();
  std::printf("cudaLaunchKernelExC,one width,any width\n");
  for (int turn = 0; turn < 5; ++turn) {
    const double alone = microseconds(bare), of_one = microseconds(one), of_any = microseconds(any);
    std::printf("%.3f,%.3f,%.3f\n", alone, of_one, of_any);
  }
  return failed;
}
