# -*- test-case-name: tests.broker.common.test_rocketmq_options -*-
"""
The properties that a configuration file of RocketMQ's broker may have, and those that we must not ignore.

The names are the setters of BrokerConfig, MessageStoreConfig (also of the tiered store), NettyServerConfig,
NettyClientConfig and AuthConfig in the jars of 4.9.8 and 5.3.3. Properties that are options of ours are read
as such. L{PROMISES} would change a promise of the broker if they were ignored. All others concern threads,
memory or parts that we do not have: they are accepted, and the log names them once.

Source: those classes, listed with C{javap -public}.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

#: Properties that are true or false.
_FLAGS = frozenset("""
    accountStatsEnable accountStatsPrintZeroValues aclEnable allAckInSyncStateSet
    allowRecallWhenBrokerNotWriteable appendAckAsync appendCkAsync asyncLearner asyncSendEnable
    authenticationEnabled authorizationEnabled autoCreateSubscriptionGroup autoCreateTopicEnable
    autoDeleteUnusedStats autoMessageVersionOnTopicLen brokerFastFailureEnable brokerTopicEnable
    checkCRCOnRecover cleanFileForciblyEnable clearRetryTopicWhenDeleteTopic clientCloseSocketIfTimeout
    clientPooledByteBufAllocatorEnable clusterTopicEnable coldCtrStrategyEnable coldDataFlowControlEnable
    coldDataScanEnable commercialEnable compatibleWithOldNameSrv compressedRegister dataReadAheadEnable
    debugLockEnable disableCallbackExecutor disableConsumeIfConsumerReadSlowly disableNettyWorkerGroup
    diskFallRecorded dispatchFromSenderThread duplicationEnable enableAsyncReput enableAutoInSyncReplicas
    enableBatchPush enableBroadcastOffsetStore enableBuildConsumeQueueConcurrently enableCalcFilterBitMap
    enableCleanExpiredOffset enableCompaction enableConsumeQueueExt enableControllerMode
    enableCreateSysGroup enableDLegerCommitLog enableDetailStat enableFastChannelEventProcess enableLmq
    enableLmqStats enableMixedMessageType enableMultiDispatch enableNetWorkFlowControl
    enableNotifyAfterPopOrderLockRelease enableNotifyBeforePopCalculateLag enablePopBatchAck
    enablePopBufferMerge enablePopLog enablePopMessageThreshold enablePropertyFilter
    enableReconnectForGoAway enableRegisterProducer enableRemoteEscape enableRetryTopicV2 enableRocksDBLog
    enableScheduleAsyncDeliver enableScheduleMessageStats enableShutdownGracefully enableSingleTopicRegister
    enableSkipLongAwaitingAck enableSlaveActingMaster enableSplitRegistration enabledAppendPropCRC
    estimateAccumulation fastFailIfNoBufferInStorePool fetchControllerAddrByDnsLookup
    fetchNameSrvAddrByDnsLookup fetchNamesrvAddrByAddressServer filterSupportRetry flushCommitLogTimed
    forceRegister forceVerifyPropCRC haFlowControlEnable highSpeedMode initPopOffsetByCheckMsgInMem
    isolateLogEnable litePullMessageEnable lockInStrictMode longPollingEnable mappedFileSwapEnable
    messageIndexEnable messageIndexSafe metricsInDelta migrateAuthFromV1Enabled
    notifyConsumerIdsChangedEnable offsetCheckInSlave popConsumerFSServiceInit popConsumerKVServiceEnable
    popConsumerKVServiceInit popConsumerKVServiceLog popResponseReturnActualRetryTopic printChannelGroups
    putConsumeQueueDataByFileChannel readAheadCacheEnable readUnCommitted realTimeNotifyConsumerChange
    realTimePersistRocksDBConfig recallMessageEnable recheckReputOffsetFromCq recordGetMessageResult
    recoverConcurrently rejectPullConsumerEnable rejectTransactionMessage retrieveMessageFromPopRetryTopicV1
    rocksdbCQDoubleWriteEnable scanAvailableNameSrv searchBcqByCacheEnable serverLoadBalancerEnable
    serverNettyWorkerGroupEnable serverPooledByteBufAllocatorEnable skipPreOnline
    skipWhenCKRePutReachMaxTimes slaveReadEnable storeReplyMessageEnable syncFromLastFile
    syncMasterFlushOffsetWhenStartup tieredStoreCrcCheckEnable tieredStoreDeleteFileEnable
    tieredStoreGroupCommit timerEnableCheckMetrics timerEnableRetryUntilSuccess timerInterceptDelayLevel
    timerSkipUnknownError timerStopEnqueue timerWheelEnable traceOn traceTopicEnable transferMsgByHeap
    transientStorePoolEnable useABSLock useEpollNativeSelector usePIDColdCtrStrategy
    useReentrantLockWhenPutMessage useServerSideResetOffset useStaticSubscription useTLS
    validateSystemTopicWhenUpdateTopic wakeCommitWhenPutMessage wakeFlushWhenPutMessage warmMapedFileEnable
""".split())

#: Properties that are numbers.
_NUMBERS = frozenset("""
    accessMessageInMemoryHotRatio accessMessageInMemoryMaxRatio ackMessageThreadPoolNums
    ackThreadPoolQueueCapacity aclCacheExpiredSecond aclCacheMaxNum aclCacheRefreshSecond
    adminBrokerThreadPoolNums adminBrokerThreadPoolQueueCapacity batchDispatchRequestThreadPoolNums
    bitMapLengthConsumeQueueExt broadcastOffsetExpireMaxSecond broadcastOffsetExpireSecond
    brokerElectionPriority brokerHeartbeatInterval brokerId brokerNotActiveTimeoutMillis brokerPermission
    cgColdReadThreshold channelExpiredTimeout channelNotActiveInterval checkSyncStateSetPeriod
    cleanOfflineBrokerInterval cleanResourceInterval cleanRocksDBDirtyCQIntervalMin cleanSwapedMapInterval
    clientAsyncSemaphoreValue clientCallbackExecutorThreads clientChannelMaxIdleTimeSeconds
    clientManageThreadPoolNums clientManagerThreadPoolQueueCapacity clientOnewaySemaphoreValue
    clientSocketRcvBufSize clientSocketSndBufSize clientWorkerThreads commercialBaseCount commercialBigCount
    commercialSizePerMsg commercialTimerCount commercialTransCount commitCommitLogLeastPages
    commitCommitLogThoroughInterval commitIntervalCommitLog commitLogForceSwapMapInterval
    commitLogRollingInterval commitLogRollingMinimumSize commitLogSwapMapInterval
    commitLogSwapMapReserveFileNum compactionCqMappedFileSize compactionMappedFileSize
    compactionScheduleInternal compactionThreadNum connectTimeoutMillis consumerFallbehindThreshold
    consumerManageThreadPoolNums consumerManagerThreadPoolQueueCapacity consumerOffsetUpdateVersionStep
    controllerHeartBeatTimeoutMills correctLogicMinOffsetForceInterval correctLogicMinOffsetSleepInterval
    defaultPopShareQueueNum defaultQueryMaxNum defaultTopicQueueNums delayOffsetUpdateVersionStep
    deleteCommitLogFilesInterval deleteConsumeQueueFilesInterval deleteFileBatchMax
    destroyMapedFileIntervalForcibly disappearTimeAfterStart diskMaxUsedSpaceRatio
    diskSpaceCleanForciblyRatio diskSpaceWarningLevelRatio dispatchCqCacheNum dispatchCqThreads
    endTransactionPoolQueueCapacity endTransactionThreadPoolNums expectConsumerNumUseFilter
    fetchNamesrvAddrInterval fileReservedTime filterDataCleanTimeSpan filterServerNums
    flushCommitLogLeastPages flushCommitLogThoroughInterval flushConsumeQueueLeastPages
    flushConsumeQueueThoroughInterval flushConsumerOffsetHistoryInterval flushConsumerOffsetInterval
    flushDelayOffsetInterval flushIntervalCommitLog flushIntervalConsumeQueue
    flushLeastPagesWhenWarmMapedFile forwardTimeout globalColdReadThreshold haHousekeepingInterval
    haListenPort haMaxGapNotInSync haMaxTimeSlaveNotCatchup haSendHeartbeatInterval haSlaveFallbehindMax
    haTransferBatchSize heartbeatThreadPoolNums heartbeatThreadPoolQueueCapacity inSyncReplicas listenPort
    litePullMessageThreadPoolNums litePullThreadPoolQueueCapacity loadBalancePollNameServerInterval
    loadBalanceProcessorThreadPoolNums loadBalanceThreadPoolQueueCapacity logicQueueForceSwapMapInterval
    logicQueueSwapMapInterval logicQueueSwapMapReserveFileNum logicalDiskSpaceCleanForciblyThreshold
    mappedFileSizeCommitLog mappedFileSizeConsumeQueue mappedFileSizeConsumeQueueExt mappedFileSizeTimerLog
    mapperFileSizeBatchConsumeQueue maxAsyncPutMessageRequests maxBatchDeleteFilesNum maxChecksumRange
    maxConsumeQueueScan maxDelayTime maxErrorRateOfBloomFilter maxFilterMessageSize
    maxHaTransferByteInSecond maxHashSlotNum maxIndexNum maxLmqConsumeQueueNum maxMessageSize
    maxMsgsNumBatch maxOffsetMapSize maxPopPollingSize maxReconnectIntervalTimeSeconds
    maxRecoveryCommitlogFiles maxSlaveResendLength maxStatsIdleTimeInMinutes maxTopicLength
    maxTransferBytesOnMessageInDisk maxTransferBytesOnMessageInMemory maxTransferCountOnMessageInDisk
    maxTransferCountOnMessageInMemory memTableFlushIntervalMs metricGrpcExporterIntervalInMills
    metricGrpcExporterTimeOutInMills metricLoggingExporterIntervalInMills metricsExporterType
    metricsOtelCardinalityLimit metricsPromExporterPort minInSyncReplicas osPageCacheBusyTimeOutMills
    popCkMaxBufferSize popCkOffsetMaxQueueSize popCkStayBufferTime popCkStayBufferTimeOut
    popFromRetryProbability popInflightMessageThreshold popLongPollingForceNotifyInterval popPollingMapSize
    popPollingSize popReviveMaxAttemptTimes popReviveMaxReturnSizePerRead printChannelGroupsMinNum
    processReplyMessageThreadPoolNums pullBatchMaxMessageCount pullMessageThreadPoolNums
    pullThreadPoolQueueCapacity putMessageFutureThreadPoolNums putMessageTimeout putMsgIndexHightWater
    putThreadPoolQueueCapacity queryMessageThreadPoolNums queryThreadPoolQueueCapacity
    readAheadCacheExpireDuration readAheadCacheSizeThresholdRate readAheadMessageCountThreshold
    readAheadMessageSizeThreshold recoverThreadPoolNums redeleteHangedFileInterval
    registerBrokerTimeoutMills registerNameServerPeriod replicasPerDiskPartition
    replyThreadPoolQueueCapacity reviveAckWaitMs reviveInterval reviveMaxSlow reviveQueueNum reviveScanTime
    rocksdbFlushWalFrequency rocksdbWalFileRollingThreshold sampleCountThreshold sampleSteps
    scheduleAsyncDeliverMaxPendingLimit scheduleAsyncDeliverMaxResendNum2Blocked sendHeartbeatTimeoutMillis
    sendMessageThreadPoolNums sendThreadPoolQueueCapacity serverAsyncSemaphoreValue
    serverCallbackExecutorThreads serverChannelMaxIdleTimeSeconds serverOnewaySemaphoreValue
    serverSelectorThreads serverSocketBacklog serverSocketRcvBufSize serverSocketSndBufSize
    serverWorkerThreads shortPollingTimeMills shutdownWaitTimeSeconds slaveTimeout
    spinLockCollisionRetreatOptimalDegree splitRegistrationSize startAcceptSendRequestTimeStamp
    statRocksDBCQIntervalSec statefulAuthenticationCacheExpiredSecond statefulAuthenticationCacheMaxNum
    statefulAuthorizationCacheExpiredSecond statefulAuthorizationCacheMaxNum subscriptionExpiredTimeout
    syncBrokerMemberGroupPeriod syncBrokerMetadataPeriod syncControllerMetadataPeriod syncFlushTimeout
    tieredStorageLevel tieredStoreCommitLogMaxSize tieredStoreConsumeQueueMaxSize
    tieredStoreDeleteFileInterval tieredStoreFileReservedTime tieredStoreGroupCommitCount
    tieredStoreGroupCommitSize tieredStoreGroupCommitTimeout tieredStoreIndexFileMaxHashSlotNum
    tieredStoreIndexFileMaxIndexNum tieredStoreMaxGroupCommitCount tieredStoreMaxPendingLimit
    timerColdDataCheckIntervalMs timerCongestNumEachSlot timerFlushIntervalMs timerGetMessageThreadNum
    timerMaxDelaySec timerMetricSmallThreshold timerPrecisionMs timerProgressLogIntervalMs
    timerPutMessageThreadNum timerRollWindowSlot topicQueueLockNum totalReplicas transactionCheckInterval
    transactionCheckMax transactionMetricFlushInterval transactionOpBatchInterval transactionOpMsgMaxSize
    transactionTimeOut transientStorePoolSize travelCqFileNumWhenGetMessage updateNameServerAddrPeriod
    userCacheExpiredSecond userCacheMaxNum userCacheRefreshSecond waitTimeMillsInAckQueue
    waitTimeMillsInAdminBrokerQueue waitTimeMillsInHeartbeatQueue waitTimeMillsInLitePullQueue
    waitTimeMillsInPullQueue waitTimeMillsInSendQueue waitTimeMillsInTransactionQueue
    writeBufferHighWaterMark writeBufferLowWaterMark
""".split())

#: Properties that are text.
_TEXTS = frozenset("""
    authConfigPath authenticationMetadataProvider authenticationProvider authenticationStrategy
    authenticationWhitelist authorizationMetadataProvider authorizationProvider authorizationStrategy
    authorizationWhitelist bindAddress bottomMostCompressionTypeForConsumeQueueStore brokerClusterName
    brokerConfigPath brokerIP1 brokerIP2 brokerName brokerRole clusterName configBlackList
    configManagerVersion configName controllerAddr dLegerGroup dLegerPeers dLegerSelfId
    defaultMessageRequestMode deleteWhen flushDiskType haMasterAddress initAuthenticationUser
    innerClientAuthenticationCredentials messageDelayLevel messageStorePlugIn metricsExporterType
    metricsGrpcExporterHeader metricsGrpcExporterTarget metricsLabel metricsPromExporterHost
    msgTraceTopicName namesrvAddr objectStoreAccessKey objectStoreBucket objectStoreEndpoint
    objectStoreSecretKey preferredLeaderId readOnlyCommitLogStorePaths regionId rocketmqHome
    rocksdbCompressionType socksProxyConfig storePathBrokerIdentity storePathCommitLog
    storePathDLedgerCommitLog storePathEpochFile storePathRootDir storeType tieredBackendServiceProvider
    tieredMetadataServiceProvider tieredStorageLevel tieredStoreFilePath
""".split())

#: Properties of RocketMQ's earlier versions that are still in many files.
_EARLIER = frozenset("""
    storePathIndex storePathConsumeQueue storeCheckpoint abortFile warmMappedFileEnable clusterName
    inBrokerContainer
""".split())

#: Properties with the only values that agree with what we do, in lower case, and the reason.
PROMISES: Mapping[str, tuple[tuple[str, ...], str]] = {
    "authenticationEnabled": (("false",), "clients are not authenticated"),
    "authorizationEnabled": (("false",), "clients are not authorized"),
    "useTLS": (("false",), "say tls_enable=true for a slave's connections, tls_mode for the ports"),
    "enableControllerMode": (("false",), "there is no controller; use broker_role"),
    "enableSlaveActingMaster": (("false",), "a slave never acts as its master"),
    "enableRemoteEscape": (("false",), "a slave never acts as its master"),
    "duplicationEnable": (("false",), "the log is not written twice"),
    "enableBuildConsumeQueueConcurrently": (("false",), "consume queues are built in order"),
    "enableLmq": (("false",), "there are no light queues"),
    "enableMultiDispatch": (("false",), "a message is in one queue"),
    "rejectPullConsumerEnable": (("false",), "pull consumers are served"),
    "storeType": (("default",), "the store has RocketMQ's files, not RocksDB"),
    "rocksdbCQDoubleWriteEnable": (("false",), "the store has RocketMQ's files, not RocksDB"),
    "messageStorePlugIn": (("",), "no class of Java can be loaded"),
    "transientStorePoolEnable": (("false",), "messages are in the page cache before they are answered"),
    "readOnlyCommitLogStorePaths": (("",), "the log has one directory; use storePathCommitLog"),
    "configManagerVersion": (("v1",), "metadata are JSON files"),
    "checkCRCOnRecover": (("true",), "checksums are always checked"),
}

_NUMBER = re.compile(r"[+-]?[0-9]+(\.[0-9]+)?")


def is_rocketmq_option(name: str) -> bool:
    """Whether RocketMQ's broker has this property."""
    return any(name in names for names in (_FLAGS, _NUMBERS, _TEXTS, _EARLIER))


def check_ignored(name: str, value: object) -> bool:
    """
    Check a property that is not an option of ours.

    @param value: text from a file, or a value of TOML.
    @return: whether it has no meaning here, so that the log should name it; False if it says what we do.
    @raise ValueError: it would change a promise, or its value is of the wrong kind.
    """
    text = str(value).strip()
    if name in PROMISES:
        allowed, reason = PROMISES[name]
        if text.lower() not in allowed:
            raise ValueError(f"{name}={text!r}: {reason}; leave it out" + (
                f", or write {allowed[0]}" if allowed[0] else ""
            ))
        return False
    if name in _FLAGS and text.lower() not in ("true", "false"):
        raise ValueError(f"{name}={text!r}: write true or false")
    if name in _NUMBERS and not _NUMBER.fullmatch(text):
        raise ValueError(f"{name}={text!r}: write a number")
    return True
