// Included before every file of what the wheel contains (gtopk_old_symbols() in GtopkFlags.cmake).
//
// std::condition_variable::wait is GLIBCXX_3.4.30 in GCC 12, only because it lost an exception
// specification. The same function's older version is in every libstdc++ since GCC 4.4, so that
// this symbol alone would keep the wheel from RHEL 9 (3.4.29). It is a version of x86-64: that of
// other machines differs.
#pragma once

#ifdef __x86_64__
__asm__(
    ".symver _ZNSt18condition_variable4waitERSt11unique_lockISt5mutexE, "
    "_ZNSt18condition_variable4waitERSt11unique_lockISt5mutexE@GLIBCXX_3.4.11");
#endif
